class StableDiffusionModelHijack:
    circular_enabled = False
    optimization_method = None

    def redo_hijack(self, m):
        pass


model_hijack = StableDiffusionModelHijack()
