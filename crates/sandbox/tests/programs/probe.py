"""The probe in a copy of a warm interpreter: as a library, so that nothing is executed."""

import ctypes
import sys

words = [word.encode() for word in ["probe", *sys.argv[1:]]]
arguments = (ctypes.c_char_p * (len(words) + 1))(*words, None)
environment = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ")
sys.exit(ctypes.CDLL("LIBRARY").main(len(words), arguments, environment))
