"""A worker of pytest-xdist in a fork of the starter: loading the libraries takes half of its start.

The argument is the path of the interpreter, for `sys.executable`.
"""

import sys

if __name__ == "__main__":
    sys.executable = sys.argv.pop()
    exec(eval(sys.stdin.readline()))  # as execnet starts it in an interpreter
