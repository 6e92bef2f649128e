class AxisOption:
    def __init__(self, label, type, apply, format_value=None, confirm=None, cost=0.0, choices=None, prepare=None):
        self.label, self.type, self.apply, self.confirm, self.choices = label, type, apply, confirm, choices


axis_options = [AxisOption("Nothing", str, None)]
