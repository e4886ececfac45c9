"""Loads the extension as Python loads any, and checks that its pools serve it.

    python3 check.py LIBRARY [DEVICE] [--driver-first]

DEVICE is a CUDA device's number, or -1 for the CPU. With --driver-first the process has the
driver's functions in its global scope before it loads the library, which then needs the linker
argument -Bsymbolic-functions.
"""

import ctypes
import os
import sys
import threading


class Report(ctypes.Structure):
    _fields_ = [
        ("expected", ctypes.c_double),
        ("sum", ctypes.c_double),
        ("requests", ctypes.c_uint64),
        ("late_misses", ctypes.c_uint64),
        ("default_pool_bytes", ctypes.c_uint64),
    ]


arguments = [argument for argument in sys.argv[1:] if argument != "--driver-first"]
if len(arguments) < len(sys.argv) - 1:
    ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(arguments[0])
device = int(arguments[1]) if len(arguments) > 1 else -1
library.run_steps.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Report)]


def run(steps):
    report = Report()
    assert library.run_steps(device, steps, ctypes.byref(report)) == 0, "run_steps"
    assert report.sum == report.expected, (report.sum, report.expected)
    assert report.requests >= 3 * steps, report.requests
    assert report.late_misses == 0, report.late_misses
    return report


first = run(10)
assert first.default_pool_bytes > 0, "weights lie in the default pool"

failures = []


def on_a_thread():
    try:
        run(20)
    except AssertionError as error:
        failures.append(error)


threads = [threading.Thread(target=on_a_thread) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures

for _ in range(5):
    assert library.keep_until_thread_ends(device) == 0, "keep_until_thread_ends"

# A child drops what it inherited without harm.
assert library.keep_until_exit(device) == 0
child = os.fork()
if child == 0:
    library.drop_kept()
    # CUDA's driver does not survive exit handlers in a child, whatever the program did before.
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, f"the child ended with status {status}"
run(5)
print("ok", flush=True)
