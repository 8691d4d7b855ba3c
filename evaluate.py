"""Score a language model on a corpus: python evaluate.py run=MODEL [key=value]; --help explains."""

from transformer_xl.commands.evaluate import main

if __name__ == "__main__":
    main()
