"""Environment variables that keep Ray and MLflow private and quiet; set before either is imported.

Usage reports are off unless the user turns them on. What the user has set already stays.
"""

from collections.abc import MutableMapping

ALLOW_TELEMETRY = "SGL_TUNER_TELEMETRY"  # set to 1 to leave each library's own choice in place
TELEMETRY_OFF = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
}
RAY = {
    "RAY_AIR_NEW_OUTPUT": "0",  # Tune's own tables; the older reporter can be silenced
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # ours stops the launch cleanly
    "TUNE_MAX_PENDING_TRIALS_PG": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # else engine and load client inherit a nice of 15
}
# Where Ray does not expect other nodes to join, all of its ports are on the loopback interface;
# the variable is named after the systems on which that is the default.
RAY_LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def set_switches(environment: MutableMapping[str, str], *, local_ray: bool) -> None:
    """Set the switches, on loopback only for a *local_ray*."""
    switches = {**RAY, **(RAY_LOOPBACK_ONLY if local_ray else {})}
    if environment.get(ALLOW_TELEMETRY) != "1":
        switches |= TELEMETRY_OFF
    for name, value in switches.items():
        environment.setdefault(name, value)
