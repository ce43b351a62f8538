# SPDX-License-Identifier: Apache-2.0
"""mpirun_again.py MPIRUN ARGUMENT...: runs mpirun, and runs it again if mpirun itself crashed.

Open MPI 4.1's mpirun may crash while it prints what a rank reports about a lost process. If a rank crashes, mpirun ends
with an exit status, not by a signal, and the test fails at once.
"""

import subprocess
import sys

for _ in range(3):
    done = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=False)
    if done.returncode >= 0:
        break
    print(f"mpirun crashed by signal {-done.returncode}:\n{done.stderr}", file=sys.stderr)
sys.stdout.write(done.stdout)
sys.stderr.write(done.stderr)
sys.exit(done.returncode if done.returncode >= 0 else 1)
