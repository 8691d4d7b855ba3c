"""What makes the model fast: each kernel stands beside the plain equation that it is tested against."""
