"""Score texts with a language model: python score.py run=MODEL texts=FILE [key=value]; --help explains."""

from transformer_xl.commands.score import main

if __name__ == "__main__":
    main()
