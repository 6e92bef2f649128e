import threading


class FIFOLock:
    def __init__(self):
        self._lock = threading.Lock()

    def acquire(self, blocking=True):
        return self._lock.acquire(blocking)

    def release(self):
        self._lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, kind, problem, trace):
        self.release()
