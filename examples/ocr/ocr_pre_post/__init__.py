"""Steps around the models of PP-OCR: picture -> detector -> boxes -> recogniser -> texts.

These are plain functions on numpy arrays, without the framework; the service, the benchmark's loop
and the tests share them. Pictures are uint8 [height, width, 3] in OpenCV's order (BGR). Boxes are
float32 [n, 4, 2]: the corners (x, y) clockwise from the text's top left.
"""
