"""Continue a text with a language model: python generate.py run=MODEL prompt="..." [key=value]; --help explains."""

from transformer_xl.commands.generate import main

if __name__ == "__main__":
    main()
