"""What a dying engine's log says of its installation, its container, its model and its GPU."""

from runners.cause import Cause
from runners.verdicts import Row, reject, retry, stop

CONTAINER: tuple[Row, ...] = (
    (
        r"(could not select device driver \S+ with capabilities: \[\[gpu\]\])",
        stop(
            Cause.CONTAINER,
            "the container engine cannot give out GPUs ({}): install the NVIDIA Container Toolkit",
        ),
    ),
    (
        r"nvidia-container-cli: (requirement error: .*?)(?:: unknown\.?)?$",
        stop(Cause.DRIVER, "the GPU driver is too old for the image: {}"),
    ),
    (
        r"(nvidia-container-cli: .*)$",
        stop(Cause.CONTAINER, "the container got no GPU, check the driver of the host: {}"),
    ),
    (
        r"^.*?((?:pull access denied for|manifest unknown|manifest for \S+ not found|"
        r"No such image|Cannot connect to the Docker daemon).*)$",
        stop(Cause.CONTAINER, "the container cannot start; check engine.docker: {}"),
    ),
    (
        r"((?:while creating shared memory segment|failed to extend) /dev/shm/nccl\S*)",
        stop(Cause.CONTAINER, "the workers have too little shared memory ({}): raise shm_size"),
    ),
    (
        r"(Fatal Python error: Bus error|^Bus error\b.*|exit code:? -7\b)",
        retry(
            Cause.CONTAINER,
            "the engine died of a bus error ({}), mostly a full /dev/shm: raise its shm_size",
        ),
    ),
)

INSTALLATION: tuple[Row, ...] = (
    (
        r"No module named '?(?:sglang|vllm)'?(?![.\w])",
        stop(
            Cause.INSTALLATION,
            "SGLang is not installed where engine.command points ({}): name the python of its "
            "environment there",
        ),
    ),
    (
        r"^.*?(Could not find nvcc|nvcc: not found|ninja: (?:command )?not found|"
        r"Ninja is required to load|No such file or directory: '\S*(?:nvcc|ninja)').*$",
        stop(
            Cause.INSTALLATION,
            "the engine cannot build its kernels ({}): install the CUDA toolkit and ninja where "
            "it runs",
        ),
    ),
    (
        r"ImportError: .*?([\w.-]+\.so\S*: undefined symbol: \w+)",
        stop(
            Cause.INSTALLATION,
            "the engine's compiled parts do not fit together, install it anew: {}",
        ),
    ),
    (
        r"PermissionError: \[Errno 13\] Permission denied: ('[^']+')",
        stop(Cause.DISK, "the engine may not write {}: give its user the right, or move HF_HOME"),
    ),
)

MODEL: tuple[Row, ...] = (
    (
        r"^.*?((?:You are trying to access a gated repo|Cannot access gated repo).*)$",
        stop(
            Cause.MODEL_FILES,
            "the model cannot be loaded: {} Ask for access, and set HF_TOKEN; or check "
            "engine.model",
        ),
    ),
    (
        r"^.*(?:OSError|HFValidationError|RepositoryNotFoundError|GatedRepoError|"
        r"LocalEntryNotFoundError|OfflineModeIsEnabled)\b:? (.*(?:Repo id|repo|"
        r"model identifier|local folder|file named|connect|offline|outgoing traffic).*)$",
        stop(Cause.MODEL_FILES, "the model cannot be loaded; check engine.model: {}"),
    ),
    (
        r"(SafetensorError: .*|Cannot find any model weights with .*|"
        r"(?:FileNotFoundError|OSError): .*\.(?:safetensors|bin)\b.*)$",
        stop(
            Cause.MODEL_FILES,
            "the model's files are damaged or incomplete, fetch them again: {}",
        ),
    ),
    (
        r"(Model architectures? .* (?:are|is) not supported.{0,9})|"
        r"(model type `?\S+`? but Transformers does not recognize this architecture)",
        stop(
            Cause.MODEL_FILES,
            "this version of the engine cannot serve the model of engine.model: {}",
        ),
    ),
    (
        r"(requires you to execute the configuration file|contains custom code which must be)",
        stop(
            Cause.MODEL_FILES,
            "the model brings its own code ({}...): read it, and put --trust-remote-code into "
            "engine.flags",
        ),
    ),
    (
        r"((?:quantization method \S+|Quantization scheme) is not supported for .*)$",
        reject(
            Cause.BAD_VALUE,
            "this GPU cannot compute with the quantization, choose another model or GPU: {}",
        ),
    ),
)

DEVICE: tuple[Row, ...] = (
    (
        r"^.*(No CUDA GPUs are available|Found no NVIDIA driver|driver on your system is too "
        r"old|driver version is insufficient|no kernel image is available|"
        r"libcuda\.so\.1: cannot open shared object file|"
        r"CU(?:BLAS|DNN)_STATUS_(?:NOT_SUPPORTED|ARCH_MISMATCH|SUBLIBRARY_VERSION_MISMATCH)|"
        r"forward compatibility was attempted on non supported HW|system not yet initialized|"
        r"CUDA error: unknown error).*$",
        stop(
            Cause.DRIVER,
            "the engine cannot use a GPU of this machine: {}; compare the driver's CUDA version "
            "with the engine's",
        ),
    ),
    (
        r"^.*(No space left on device).*$",
        stop(
            Cause.DISK, "the engine could not write ({}): make room where HF_HOME and TMPDIR lie"
        ),
    ),
    (
        r"(uncorrectable ECC error|fallen off the bus|device is unavailable|"
        r"uncorrectable NVLink error)",
        retry(
            Cause.LINKS,
            "a GPU failed ({}): if it comes again, look for Xid in the kernel's log and reset it",
        ),
    ),
)
