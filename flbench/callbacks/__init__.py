"""Callbacks: code of one's own that runs during a run, may stop it, and cannot change it."""

from flbench.callbacks.base import Callback
from flbench.callbacks.callback_list import CallbackList
from flbench.callbacks.run_view import RunView

__all__ = ["Callback", "CallbackList", "RunView"]
