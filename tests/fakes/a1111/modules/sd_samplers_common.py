from collections import namedtuple

SamplerData = namedtuple("SamplerData", ["name", "constructor", "aliases", "options"])


class InterruptedException(BaseException):
    pass


class Sampler:
    def __init__(self, funcname):
        self.config = SamplerData(funcname, None, [], {})
        self.p = None

    def callback_state(self, d):
        pass

    def launch_sampling(self, steps, func):
        try:
            return func()
        except InterruptedException:
            return None


def store_latent(decoded):
    pass
