"""What is done around the models of PP-OCR: picture -> detector -> boxes -> recogniser -> texts.

Plain functions on numpy arrays, without the framework: the service, the benchmark's loop and the
tests share them. Pictures are uint8 [height, width, 3] in OpenCV's order (BGR); boxes float32
[n, 4, 2], the corners (x, y) clockwise from where the text's top left is.
"""
