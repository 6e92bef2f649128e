import threading


class SdModelData:
    def __init__(self):
        self.sd_model = None
        self.lock = threading.Lock()


model_data = SdModelData()


def send_model_to_cpu(m):
    pass


def send_model_to_device(m):
    pass


def send_model_to_trash(m):
    pass
