"""How an engine dies: the lines it leaves in the log and the exit code its launcher sees."""

from runners.errors import CandidateRejectedError

REFUSED_FLAG = 2
REFUSED_SETTING = 1
ADDRESS_IN_USE = 3
CHILD_FAILED = 137  # SGLang kills its own process tree when its scheduler fails


class EngineDeathError(CandidateRejectedError):
    """The emulated engine died where SGLang would have; the message is SGLang's last word."""

    def __init__(
        self, message: str, exit_code: int = CHILD_FAILED, *, weights_loaded: bool = True
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.weights_loaded = weights_loaded

    @property
    def log(self) -> str:
        """What SGLang would have left in its log."""
        if self.exit_code != CHILD_FAILED:
            return f"{self}\n"
        return (
            "Scheduler hit an exception: Traceback (most recent call last):\n"
            f"{self}\n"
            "Received sigquit from a child process. It usually means the child failed.\n"
        )
