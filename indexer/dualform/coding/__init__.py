"""How what one sample looked like is checked and coded, whoever gives it: images as PNGs, texts with their tokens."""
