//! The drivers of a queue's time, and which of them is in charge.
//!
//! A queue has two groups of drivers. One is the timer's: the queue itself, and the tasks that
//! drive it. The other one is of threads that wait. Each driver but the queue itself is a node, in
//! a pinned future or on a thread's stack. It leaves its group before it is dropped. A group tells
//! its drivers apart by the addresses of their nodes, never by their wakers.
//!
//! ```text
//!            tell                 comes
//!   Open -----------> Told(d) -----------> Armed(d, at)
//!    ^                   |                    |   |
//!    +---- d leaves, or its waker panics -----+   | due before `at`, or `at` is long over: tell
//!                                                 v
//!                                               Told
//! ```
//!
//! Invariant of a group that is not empty, whenever the lock is free: if anything is due at any
//! time, then either a driver has its timer set for that instant or an earlier one, or a driver
//! that has not left has been woken. [`Drivers::tell`] establishes this at the end of each critical
//! section. What breaks it later (a driver that leaves, a waker or a timer that panics) opens the
//! charge under the lock, or leaves the mark `TIME` for the holder of the lock.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::marker::PhantomPinned;
use core::mem;
use core::ptr::NonNull;
use core::task::Waker;
use core::time::Duration;

use portcullis_core::Timestamp;

use crate::waiting::ring::{Ring, RingLinks, RingNode};

/// One driver. Once it has been registered, its fields belong to the holder of the lock.
#[derive(Debug)]
pub(crate) struct Driver {
    /// There until it has been woken.
    waker: Option<Waker>,
    links: RingLinks<Self>,
    is_linked: bool,
    _pinned: PhantomPinned,
}

#[derive(Debug)]
enum Group {}

// SAFETY: a field of the node.
unsafe impl RingNode<Group> for Driver {
    fn links(driver: NonNull<Self>) -> NonNull<RingLinks<Self>> {
        // SAFETY: within the node, which is valid while it is in a group or enters one.
        unsafe { NonNull::new_unchecked(&raw mut (*driver.as_ptr()).links) }
    }
}

/// The place of a driver's node, in a future or on a stack.
#[derive(Debug)]
pub(crate) struct DriverSlot {
    /// Whether the node may be registered. The owner of the place sets this before it registers.
    has_come: bool,
    driver: UnsafeCell<Driver>,
}

// SAFETY: the node belongs to the holder of the lock, which threads share; the rest is plain data.
unsafe impl Send for DriverSlot {}

// SAFETY: a shared reference leads to nothing.
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

    /// The node, which may be registered from now on.
    pub(crate) const fn coming(&mut self) -> NonNull<Driver> {
        self.has_come = true;
        self.member()
    }

    const fn member(&self) -> NonNull<Driver> {
        // SAFETY: it is there.
        unsafe { NonNull::new_unchecked(self.driver.get()) }
    }

    /// The node, if it may be registered and has to leave.
    pub(crate) const fn leaving(&mut self) -> Option<NonNull<Driver>> {
        if mem::replace(&mut self.has_come, false) {
            Some(self.member())
        } else {
            None
        }
    }
}

/// A member; `None` is the queue itself.
type Member = Option<NonNull<Driver>>;

/// Who is in charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Charge {
    Open,
    /// The driver has been woken, and has not come yet.
    Told(Member),
    /// The driver comes again at this instant: its timer is set, or is about to be, and the charge
    /// is opened if that unwinds.
    Armed(Member, Timestamp),
}

/// An alarm that is later than this is taken for lost: its timer has ended, say, or the waker of
/// its task has panicked.
const LOST_AFTER: Duration = Duration::from_millis(100);

/// One group of drivers.
#[derive(Debug)]
pub(crate) struct Drivers {
    /// The queue's own waker. It has precedence over tasks.
    attendant: Option<Waker>,
    members: Ring<Driver, Group>,
    charge: Charge,
}

// SAFETY: nodes pass from thread to thread under the lock; wakers can be sent.
unsafe impl Send for Drivers {}

/// Which driver to wake, by this waker.
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

    /// Makes the queue itself the preferred driver, by this waker.
    pub(crate) fn attend(&mut self, waker: Waker) -> Option<Waker> {
        self.open();
        self.attendant.replace(waker)
    }

    /// No driver is known to be armed.
    pub(crate) fn open(&mut self) {
        self.charge = Charge::Open;
    }

    /// Whether this driver is in charge: it has been woken for that, or its timer is set.
    pub(crate) fn is_in_charge(&self, member: NonNull<Driver>) -> bool {
        matches!(self.charge, Charge::Told(Some(one)) | Charge::Armed(Some(one), _) if one == member)
    }

    /// Whether a driver may take charge without taking it from another one.
    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn is_open_to(&self, member: NonNull<Driver>) -> bool {
        self.charge == Charge::Open || self.is_in_charge(member)
    }

    /// The driver is about to set its timer for `due`.
    pub(crate) fn take_charge(&mut self, member: Member, due: Timestamp) {
        self.charge = Charge::Armed(member, due);
    }

    /// Registers a driver, or replaces its waker. The previous one is left in `waker`.
    ///
    /// # Safety
    ///
    /// The node is in this group or in none, and is neither moved nor dropped before it has left.
    pub(crate) unsafe fn come(&mut self, member: NonNull<Driver>, waker: &mut Option<Waker>) {
        // SAFETY: the node is the caller's, under the lock; its neighbour is linked.
        unsafe {
            let new = member.as_ptr();
            mem::swap(&mut (*new).waker, waker);
            if !mem::replace(&mut (*new).is_linked, true) {
                self.members.push_back(member);
            }
        }
    }

    /// Removes a driver. Returns its waker, and whether it was in charge.
    ///
    /// # Safety
    ///
    /// The node is in this group or in none. Afterwards it is in none.
    pub(crate) unsafe fn leave(&mut self, member: NonNull<Driver>) -> (Option<Waker>, bool) {
        // SAFETY: the node is the caller's, under the lock; its neighbours are linked.
        unsafe {
            let old = member.as_ptr();
            if mem::replace(&mut (*old).is_linked, false) {
                self.members.remove(member);
            }
            let was_in_charge = self.is_in_charge(member);
            if was_in_charge {
                self.open();
            }
            ((*old).waker.take(), was_in_charge)
        }
    }

    /// Chooses a driver to wake if none is armed for `due`, and none has been woken. An alarm that
    /// should have come long before `now` counts as none.
    pub(crate) fn tell(&mut self, due: Timestamp, now: Timestamp) -> Option<Told> {
        if due == Timestamp::MAX {
            return None;
        }
        let in_charge = match self.charge {
            Charge::Told(_) => return None,
            Charge::Armed(_, at) if at <= due && at.saturating_add(LOST_AFTER) >= now => {
                return None;
            }
            Charge::Armed(member, _) => member,
            Charge::Open => None,
        };
        if let Some(attendant) = &self.attendant {
            self.charge = Charge::Told(None);
            return Some(Told::Attendant(attendant.clone()));
        }
        self.tell_one(in_charge, None).map(Told::Driver)
    }

    /// Chooses another driver than the queue itself and `member`, which could not set its timer.
    pub(crate) fn pass_on(&mut self, member: Member) -> Option<Waker> {
        self.open();
        self.tell_one(None, member)
    }

    /// Chooses `first`, or else the first one that has a waker, but not `but`.
    fn tell_one(&mut self, first: Member, but: Member) -> Option<Waker> {
        let mut members = first
            .into_iter()
            .chain(self.members.iter())
            .filter(|member| Some(*member) != but);
        // SAFETY: linked nodes are valid, and belong to the holder of the lock; one that is in
        // charge is linked.
        let told = members.find_map(|member| unsafe {
            (*member.as_ptr()).waker.take().map(|waker| (member, waker))
        });
        told.map(|(member, waker)| {
            self.charge = Charge::Told(Some(member));
            waker
        })
    }

    /// The waker of any driver that has one, whether or not anything is due.
    pub(crate) fn next_waker(&mut self) -> Option<Waker> {
        let charge = self.charge;
        let waker = self.tell_one(None, None);
        self.charge = charge;
        waker
    }
}
