//! The drivers of a queue's timers, and which driver is in charge.
//!
//! A queue has two groups of drivers:
//!
//! - The timed group: the queue itself, and the tasks that drive it. They use the timer.
//! - The threads that block in the queue. They sleep instead of using the timer.
//!
//! Each driver except the queue itself is a node, in a pinned future or on a thread's stack. A node
//! leaves its group before it is dropped. A group identifies its drivers by the addresses of their
//! nodes, never by their wakers.
//!
//! ```text
//!            tell                 comes
//!   Open -----------> Told(d) -----------> Armed(d, at)
//!    ^                   |                    |   |
//!    +---- d leaves, or its waker panics -----+   | `due` before `at`, or `at` is overdue: tell
//!                                                 v
//!                                               Told
//! ```
//!
//! Invariants:
//!
//! - While the lock is free and anything is due at any time, a group that is not empty has either a
//!   driver whose timer is set for that instant or an earlier one, or a driver that has been woken
//!   and has not left. [`Drivers::tell`] establishes this at the end of each critical section. A
//!   later event can break it: a driver leaves, or a waker or a timer panics. Each such event
//!   either opens the charge inside the lock, or sets the pending bit `TIME` for the next holder of
//!   the lock.
//! - A registered node is valid and does not move: its owner unregisters it before it moves or
//!   drops it. Only the holder of the lock accesses the fields of a registered node.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::marker::PhantomPinned;
use core::mem;
use core::ptr::NonNull;
use core::task::Waker;
use core::time::Duration;

use portcullis_core::Timestamp;

use crate::waiting::ring::{Ring, RingLinks, RingNode};

/// One driver. Once the node is registered, only the holder of the lock accesses its fields.
#[derive(Debug)]
pub(crate) struct Driver {
    /// `None` after the driver has been woken.
    waker: Option<Waker>,
    links: RingLinks<Self>,
    is_linked: bool,
    _pinned: PhantomPinned,
}

#[derive(Debug)]
enum Group {}

// SAFETY: `links` is a field of the node, so it is at the same place each time.
unsafe impl RingNode<Group> for Driver {
    fn links(driver: NonNull<Self>) -> NonNull<RingLinks<Self>> {
        // SAFETY: the pointer is within the node, so it is not null. The node is valid while it is
        // in a group or enters one, which is when rings call this.
        unsafe { NonNull::new_unchecked(&raw mut (*driver.as_ptr()).links) }
    }
}

/// Storage for a driver's node, in a future or on a stack.
#[derive(Debug)]
pub(crate) struct DriverSlot {
    /// Whether the node may be registered. The owner of the slot sets this before it registers the
    /// node.
    has_come: bool,
    driver: UnsafeCell<Driver>,
}

// SAFETY: a registered node is accessed only by the holder of the lock. `has_come` is plain data of
// the slot's owner. The node's waker is `Send`.
unsafe impl Send for DriverSlot {}

// SAFETY: no method accesses a field through `&DriverSlot`; `member` only returns an address.
unsafe impl Sync for DriverSlot {}

impl DriverSlot {
    pub(crate) const fn new() -> Self {
        let driver = Driver {
            waker: None,
            links: RingLinks::UNLINKED,
            is_linked: false,
            _pinned: PhantomPinned,
        };
        Self {
            has_come: false,
            driver: UnsafeCell::new(driver),
        }
    }

    /// Returns the node and notes that it may be registered from now on.
    pub(crate) const fn coming(&mut self) -> NonNull<Driver> {
        self.has_come = true;
        self.member()
    }

    const fn member(&self) -> NonNull<Driver> {
        // SAFETY: `UnsafeCell::get` returns a pointer into `self`, which is not null.
        unsafe { NonNull::new_unchecked(self.driver.get()) }
    }

    /// Returns the node if it may be registered; the caller then unregisters it.
    pub(crate) const fn leaving(&mut self) -> Option<NonNull<Driver>> {
        if mem::replace(&mut self.has_come, false) {
            Some(self.member())
        } else {
            None
        }
    }
}

/// A driver that can be in charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    /// The queue itself.
    Queue,
    /// A task that drives the queue, or a thread that blocks in it.
    Driver(NonNull<Driver>),
    /// The future of a waiter, by the address of the waiter. It drives if there is no other driver.
    Waiter(usize),
}

/// Which driver is in charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Charge {
    Open,
    /// The driver has been woken, and has not called back yet.
    Told(Member),
    /// The driver calls back at this instant. Its timer is set or is about to be set; if setting it
    /// unwinds, the charge is opened.
    Armed(Member, Timestamp),
}

/// An alarm that is overdue by more than this is presumed lost. For example, its timer has shut
/// down, or the waker of its task panicked.
const LOST_AFTER: Duration = Duration::from_millis(100);

/// One group of drivers.
#[derive(Debug)]
pub(crate) struct Drivers {
    /// The queue's own waker. It takes precedence over tasks.
    attendant: Option<Waker>,
    members: Ring<Driver, Group>,
    charge: Charge,
}

// SAFETY: the nodes are accessed only inside the lock, by one thread at a time, and `Waker` is
// `Send`.
unsafe impl Send for Drivers {}

/// The driver to wake, and its waker.
pub(crate) enum Told {
    Attendant(Waker),
    Driver(Waker),
}

impl Drivers {
    pub(crate) const EMPTY: Self = Self {
        attendant: None,
        members: Ring::EMPTY,
        charge: Charge::Open,
    };

    pub(crate) const fn is_attended(&self) -> bool {
        self.attendant.is_some()
    }

    /// Makes the queue itself the preferred driver, woken by `waker`. Returns the previous waker.
    pub(crate) fn attend(&mut self, waker: Waker) -> Option<Waker> {
        self.open();
        self.attendant.replace(waker)
    }

    /// Notes that no driver is known to be armed.
    pub(crate) fn open(&mut self) {
        self.charge = Charge::Open;
    }

    /// Returns whether this driver is in charge: it has been woken to take charge, or its timer is
    /// set.
    pub(crate) fn is_in_charge(&self, member: Member) -> bool {
        matches!(self.charge, Charge::Told(one) | Charge::Armed(one, _) if one == member)
    }

    /// Opens the charge if this driver is in charge.
    #[cold]
    pub(crate) fn open_if_in_charge(&mut self, member: Member) {
        if self.is_in_charge(member) {
            self.open();
        }
    }

    /// Returns whether this driver can take charge without displacing another driver.
    #[cfg(all(feature = "std", not(portcullis_loom)))]
    pub(crate) fn is_open_to(&self, member: NonNull<Driver>) -> bool {
        self.charge == Charge::Open || self.is_in_charge(Member::Driver(member))
    }

    /// Notes that the driver is about to set its timer for `due`.
    pub(crate) fn take_charge(&mut self, member: Member, due: Timestamp) {
        self.charge = Charge::Armed(member, due);
    }

    /// Registers a driver, or replaces its waker. The previous waker is left in `waker`.
    ///
    /// # Safety
    ///
    /// The node is valid and is in this group or in none. It is neither moved nor dropped before it
    /// has left.
    pub(crate) unsafe fn come(&mut self, member: NonNull<Driver>, waker: &mut Option<Waker>) {
        // SAFETY: the node is valid, as the caller guarantees, and the holder of the lock has
        // exclusive access to it. `is_linked` tells that it is pushed only while it is in no ring.
        unsafe {
            let new = member.as_ptr();
            mem::swap(&mut (*new).waker, waker);
            if !mem::replace(&mut (*new).is_linked, true) {
                self.members.push_back(member);
            }
        }
    }

    /// Unregisters a driver. Returns its waker, and whether it was in charge.
    ///
    /// # Safety
    ///
    /// The node is valid and is in this group or in none. After the call it is in none.
    pub(crate) unsafe fn leave(&mut self, member: NonNull<Driver>) -> (Option<Waker>, bool) {
        // SAFETY: the node is valid, as the caller guarantees, and the holder of the lock has
        // exclusive access to it. `is_linked` tells that it is removed only while it is in this
        // ring.
        unsafe {
            let old = member.as_ptr();
            if mem::replace(&mut (*old).is_linked, false) {
                self.members.remove(member);
            }
            let was_in_charge = self.is_in_charge(Member::Driver(member));
            if was_in_charge {
                self.open();
            }
            ((*old).waker.take(), was_in_charge)
        }
    }

    /// Chooses a driver to wake, unless a driver is armed for `due` or earlier, or has been woken.
    /// An alarm that is overdue by more than `LOST_AFTER` at `now` does not count.
    ///
    /// If there is no other driver, `waiter` chooses a waiter. It returns the waiter's address and
    /// its waker.
    pub(crate) fn tell(
        &mut self,
        due: Timestamp,
        now: Timestamp,
        waiter: impl FnOnce() -> Option<(usize, Waker)>,
    ) -> Option<Told> {
        if due == Timestamp::MAX {
            return None;
        }
        let in_charge = match self.charge {
            Charge::Told(_) => return None,
            Charge::Armed(_, at) if at <= due && at.saturating_add(LOST_AFTER) >= now => {
                return None;
            }
            Charge::Armed(Member::Driver(member), _) => Some(member),
            Charge::Armed(..) | Charge::Open => None,
        };
        if let Some(attendant) = &self.attendant {
            self.charge = Charge::Told(Member::Queue);
            return Some(Told::Attendant(attendant.clone()));
        }
        let told = self.tell_one(in_charge, None).or_else(|| {
            let (waiter, waker) = waiter()?;
            self.charge = Charge::Told(Member::Waiter(waiter));
            Some(waker)
        });
        told.map(Told::Driver)
    }

    /// Chooses a driver other than the queue itself and other than `member`, which could not set
    /// its timer.
    pub(crate) fn pass_on(&mut self, member: Option<NonNull<Driver>>) -> Option<Waker> {
        self.open();
        self.tell_one(None, member)
    }

    /// Chooses `first`, or else the first driver that has a waker, but never `but`.
    fn tell_one(
        &mut self,
        first: Option<NonNull<Driver>>,
        but: Option<NonNull<Driver>>,
    ) -> Option<Waker> {
        let mut members = first
            .into_iter()
            .chain(self.members.iter())
            .filter(|member| Some(*member) != but);
        // SAFETY: a linked node is valid, and the holder of the lock has exclusive access to it. A
        // driver in charge is linked, since `leave` opens its charge.
        let told = members.find_map(|member| unsafe {
            (*member.as_ptr()).waker.take().map(|waker| (member, waker))
        });
        told.map(|(member, waker)| {
            self.charge = Charge::Told(Member::Driver(member));
            waker
        })
    }

    /// Takes the waker of any driver that has one, whether or not anything is due.
    pub(crate) fn next_waker(&mut self) -> Option<Waker> {
        let charge = self.charge;
        let waker = self.tell_one(None, None);
        self.charge = charge;
        waker
    }
}
