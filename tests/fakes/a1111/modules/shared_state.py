class State:
    skipped = False
    interrupted = False
    stopping_generation = False

    def interrupt(self):
        self.interrupted = True

    def do_set_current_image(self):
        pass
