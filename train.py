"""Train a language model: python train.py [group=choice] [key=value]; --help explains."""

from transformer_xl.commands.train import main

if __name__ == "__main__":
    main()
