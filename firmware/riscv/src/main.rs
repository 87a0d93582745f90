//! The checks on RISC-V: QEMU's virt board. Its terminal is a UART, its timer is the CLINT's, and
//! its test device ends the emulator.
#![no_std]
#![no_main]

use core::arch::asm;
use core::cell::Cell;
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::ptr;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use critical_section::Mutex;
use portcullis_checks::{Board, Preempting, Tally};
use riscv::interrupt::Interrupt;
use riscv::register::{mcycle, mepc, mie};

const UART: *mut u8 = ptr::without_provenance_mut(0x1000_0000);
const TEST_DEVICE: *mut u32 = ptr::without_provenance_mut(0x10_0000);
const TIME: *mut u32 = ptr::without_provenance_mut(0x0200_bff8);
const TIME_TO_INTERRUPT: *mut u32 = ptr::without_provenance_mut(0x0200_4000);

/// What the next interrupt of the timer runs.
static HANDLER: Mutex<Cell<Option<fn()>>> = Mutex::new(Cell::new(None));

struct Terminal;

impl Write for Terminal {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the UART's transmit register; the emulated one is never full.
            unsafe { UART.write_volatile(byte) };
        }
        Ok(())
    }
}

struct Virt;

impl Board for Virt {
    fn print(&self, text: fmt::Arguments<'_>) {
        _ = Terminal.write_fmt(text);
    }

    fn interrupt(&self, handler: fn()) {
        critical_section::with(|section| HANDLER.borrow(section).set(Some(handler)));
        start_timer(100);
    }

    fn sleep_until(&self, done: &dyn Fn() -> bool) {
        // An interrupt between the check and the sleep is pending, so it ends the sleep.
        while !critical_section::with(|_| {
            let is_done = done();
            if !is_done {
                riscv::asm::wfi();
            }
            is_done
        }) {}
    }
}

/// The instructions in a tick of the timer.
const TICK: usize = 100;

impl Preempting for Virt {
    fn preempt(&self, sooner: u32, work: &mut dyn FnMut(), handler: fn()) -> usize {
        critical_section::with(|section| HANDLER.borrow(section).set(Some(handler)));
        CAME_AT.store(0, Relaxed);
        // Here a cycle is an instruction: start at the same place in a tick each time.
        wait((2 * TICK - mcycle::read() % TICK) as u32);
        start_timer(300);
        wait(sooner);
        work();
        loop {
            match CAME_AT.load(Relaxed) {
                0 => {}
                address => return address,
            }
        }
    }
}

/// Waits for `instructions + 4` instructions.
#[inline(always)]
fn wait(instructions: u32) {
    // SAFETY: uses registers only.
    unsafe {
        asm!(
            "andi {odd}, {n}, 1",
            "srli {n}, {n}, 1",
            "beqz {odd}, 2f",
            "nop",
            "2:",
            "beqz {n}, 4f",
            "3:",
            "addi {n}, {n}, -1",
            "bnez {n}, 3b",
            "4:",
            n = inout(reg) instructions => _,
            odd = out(reg) _,
            options(nomem, nostack),
        );
    }
}

fn start_timer(ticks: u32) {
    // SAFETY: the CLINT's registers, which nothing else uses. The upper half of the time is still
    // zero, and nothing is due between the two writes.
    unsafe {
        TIME_TO_INTERRUPT.write_volatile(u32::MAX);
        TIME_TO_INTERRUPT.add(1).write_volatile(0);
        TIME_TO_INTERRUPT.write_volatile(TIME.read_volatile().wrapping_add(ticks));
    }
}

fn stop_timer() {
    // SAFETY: the same.
    unsafe { TIME_TO_INTERRUPT.add(1).write_volatile(u32::MAX) };
}

/// The address at which the timer's interrupt came.
static CAME_AT: AtomicUsize = AtomicUsize::new(0);

#[riscv_rt::core_interrupt(Interrupt::MachineTimer)]
fn on_timer() {
    stop_timer();
    if let Some(handler) = critical_section::with(|section| HANDLER.borrow(section).take()) {
        handler();
    }
    CAME_AT.store(mepc::read(), Relaxed);
}

/// Ends the emulator.
fn exit(succeeds: bool) -> ! {
    // SAFETY: the test device's register.
    unsafe { TEST_DEVICE.write_volatile(if succeeds { 0x5555 } else { 0x1_3333 }) };
    loop {
        riscv::asm::wfi();
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    _ = writeln!(Terminal, "{info}");
    exit(false)
}

#[unsafe(export_name = "ExceptionHandler")]
fn on_exception(frame: &riscv_rt::TrapFrame) -> ! {
    panic!(
        "{frame:?}, {:?} at {:#x}",
        riscv::register::mcause::read(),
        riscv::register::mepc::read()
    )
}

#[riscv_rt::entry]
fn main() -> ! {
    stop_timer();
    // SAFETY: no critical section is open, so none depends on interrupts being off.
    unsafe {
        mie::set_mtimer();
        riscv::interrupt::enable();
    }
    let mut tally = Tally::default();
    portcullis_checks::run(&Virt, &mut tally);
    portcullis_checks::run_tables(&Virt, &mut tally);
    portcullis_checks::run_wrappers(&Virt, &mut tally);
    portcullis_checks::preempt(&Virt, &mut tally);
    exit(tally.close(&Virt))
}
