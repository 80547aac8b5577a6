"""What the miniature mix is made of: dice, pixels, glyphs, material, scenes, captions, questions, benchmark.

Nothing here depends on a drawing library's version: pictures are integer arithmetic on arrays, letters are filled
from a font's outlines, dice are Python's `random.Random.random`, whose stream is promised. So a seed means the same
text and pixels on any machine.
"""
