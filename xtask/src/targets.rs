//! The targets, apart from the host.

/// Two with 32-bit words, one with 64-bit atomics, WebAssembly, and one without compare-exchange.
pub(crate) const TARGETS: [&str; 5] = [
    "thumbv7m-none-eabi",
    "riscv32imac-unknown-none-elf",
    "x86_64-unknown-none",
    WASM,
    SINGLE_CORE,
];

pub(crate) const WASM: &str = "wasm32-unknown-unknown";

/// It has no compare-exchange: a read-modify-write disables interrupts, on its one core.
pub(crate) const SINGLE_CORE: &str = "thumbv6m-none-eabi";

/// The programs of a board, their target, and their emulator.
pub(crate) struct Board {
    pub(crate) package: &'static str,
    /// Several programs if the flash is too small for all checks.
    pub(crate) programs: &'static [&'static str],
    pub(crate) target: &'static str,
    pub(crate) emulator: &'static str,
}

pub(crate) const BOARDS: [Board; 3] = [
    Board {
        package: "portcullis-cortex-m3",
        programs: &[
            "portcullis-cortex-m3",
            "portcullis-cortex-m3-tables",
            "portcullis-cortex-m3-wrappers",
            "portcullis-cortex-m3-preempted",
        ],
        target: "thumbv7m-none-eabi",
        emulator: "qemu-system-arm",
    },
    Board {
        package: "portcullis-cortex-m0",
        programs: &[
            "portcullis-cortex-m0",
            "portcullis-cortex-m0-tables",
            "portcullis-cortex-m0-wrappers",
            "portcullis-cortex-m0-preempted",
        ],
        target: SINGLE_CORE,
        emulator: "qemu-system-arm",
    },
    Board {
        package: "portcullis-riscv",
        programs: &["portcullis-riscv"],
        target: "riscv32imac-unknown-none-elf",
        emulator: "qemu-system-riscv32",
    },
];
