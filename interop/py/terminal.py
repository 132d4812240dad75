"""Runs `peerdma top` on a terminal, beside a program whose one queue pair is connected.

    terminal.py PEERDMA NAME

It must show the process NAME, obey keys and a new size, and leave the terminal as it was, whether a
key or a signal ends it.
"""

import atexit
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

LEAVES = b"\x1b[?1049l"
SEQUENCE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
PATIENCE = 60


class Top:
    """`peerdma top` with a terminal of its own."""

    def __init__(self, peerdma):
        self.screen, self.tty = pty.openpty()
        self.size(24, 100)
        self.before = termios.tcgetattr(self.tty)
        self.shown = b""
        self.program = subprocess.Popen(
            [peerdma, "top", "--interval", "0.2"],
            stdin=self.tty,
            stdout=self.tty,
            stderr=self.tty,
            env={**os.environ, "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        atexit.register(self.program.kill)

    def size(self, lines, columns):
        """The terminal has another size: everything is drawn anew."""
        self.shown = b""
        self.now = lines, columns
        fcntl.ioctl(self.tty, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, key):
        os.write(self.screen, key)

    def read(self, patience):
        ready = select.select([self.screen], [], [], patience)[0]
        if ready:
            self.shown += os.read(self.screen, 1 << 16)
        return bool(ready)

    def words(self):
        """What was written: where the place of a word stands in between, a space."""
        return b" ".join(SEQUENCE.sub(b" ", self.shown).split())

    def until(self, words):
        """Waits for words. What stands there already is not written again, so that words may come
        in parts: with another size they come whole."""
        deadline = time.monotonic() + PATIENCE
        redraw = time.monotonic() + 2
        while words not in self.words():
            self.read(0.1)
            if time.monotonic() > deadline:
                sys.exit(f"no {words!r} in {self.shown!r}")
            if time.monotonic() > redraw and words not in self.words():
                redraw = time.monotonic() + 2
                lines, columns = self.now
                self.size(lines, columns ^ 1)

    def end(self):
        """It has been told to end."""
        deadline = time.monotonic() + PATIENCE
        while self.program.poll() is None and time.monotonic() < deadline:
            self.read(0.1)
        status = self.program.poll()
        while self.read(0):
            pass
        is_restored = LEAVES in self.shown and termios.tcgetattr(self.tty) == self.before
        if status != 0 or not is_restored:
            sys.exit(f"status {status}, or the terminal is not as it was: {self.shown!r}")


def main():
    peerdma, name = sys.argv[1:]
    top = Top(peerdma)
    top.until(name.encode())
    top.press(b"\t")
    top.until(b"RETRIES")
    # What is selected is explained, and everything that fits is shown.
    top.size(30, 120)
    for words in [b"RTS", b"UDP", b"the address belongs to another host"]:
        top.until(words)
    # Four characters are a terminal as well.
    top.size(1, 4)
    top.size(40, 90)
    for words in [b"Processes", b"GPU buffers", b"q quit"]:
        top.until(words)
    top.press(b"q")
    top.end()
    for number in [signal.SIGTERM, signal.SIGHUP]:
        top = Top(peerdma)
        top.until(name.encode())
        top.program.send_signal(number)
        top.end()
    print("all shown")


if __name__ == "__main__":
    main()
