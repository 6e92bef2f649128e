from types import SimpleNamespace

from modules.shared_state import State

cmd_opts = SimpleNamespace()
state = State()
parallel_processing_allowed = True
loaded_hypernetworks = []


class OptionInfo:
    def __init__(
        self,
        default=None,
        label="",
        component=None,
        component_args=None,
        onchange=None,
        section=None,
        refresh=None,
        comment_before="",
        comment_after="",
        infotext=None,
        restrict_api=False,
        category_id=None,
    ):
        self.default, self.label, self.component, self.component_args = default, label, component, component_args
        self.onchange, self.section, self.comment_after, self.category_id = onchange, section, comment_after, category_id

    def info(self, info):
        self.comment_after += info
        return self


class Options:
    def __init__(self):
        self.data = {}
        self.data_labels = {}

    def add_option(self, key, info):
        self.data_labels[key] = info
        self.data.setdefault(key, info.default)

    def set(self, key, value):
        """As the settings page does it."""
        self.data[key] = value
        self.data_labels[key].onchange()


opts = Options()
