from modules.fifo_lock import FIFOLock

queue_lock = FIFOLock()
