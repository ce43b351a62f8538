# SPDX-License-Identifier: Apache-2.0
"""Ranks that are threads of the calling script."""

import threading


def together(ends, work):
    """Runs work(end) in a thread for each end. Raises the exception of a thread."""
    failed = []

    def guarded(end):
        try:
            end.set_timeout(60)
            work(end)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(end,)) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
