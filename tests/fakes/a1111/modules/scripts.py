AlwaysVisible = object()
scripts_data = []


class Script:
    infotext_fields = None
    paste_field_names = None

    def title(self):
        raise NotImplementedError

    def ui(self, is_img2img):
        pass

    def show(self, is_img2img):
        return True

    def before_process(self, p, *args):
        pass

    def process(self, p, *args):
        pass

    def before_process_batch(self, p, *args, **kwargs):
        pass

    def post_sample(self, p, ps, *args):
        pass

    def postprocess_batch(self, p, *args, **kwargs):
        pass
