//! Those who can see to a queue's time, and which of them is in charge.
//!
//! There are two crews: of the timer, the queue itself and tasks that drive it; and of threads that wait. Each member but the queue itself is a node of its own, which lies in a pinned future or on a
//! thread's stack, and is taken out before it goes: so members are told apart by where they lie, and one that leaves is known by that.
//!
//! ```text
//!            tell                 comes
//!   Open -----------> Told(m) -----------> Armed(m, at)
//!    ^                   |                    |   |
//!    +---- m leaves, or its waker panics -----+   | something is due before `at`, or `at` is long over: tell
//!                                                 v
//!                                               Told
//! ```
//!
//! Invariant of a crew that is not empty, once the lines have been left: if anything is due ever, then a member that will come is armed for that instant or an earlier one, or a member
//! that has not left has been told. `Crew::tell` establishes it, at the end of each stay in the lines; whatever breaks it afterwards (a member that leaves in whatever way, a waker or an alarm that panics)
//! opens the charge, at the lines again, or leaves the mark `TIME` for the one who has them.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::marker::PhantomPinned;
use core::mem;
use core::ptr::NonNull;
use core::task::Waker;
use core::time::Duration;

use portcullis_core::Timestamp;

/// A member of a crew. Its fields belong to the one who has the lines, once it has been there.
#[derive(Debug)]
pub struct Driver {
    /// To tell it by, until it has been told.
    waker: Option<Waker>,
    before: Option<NonNull<Self>>,
    after: Option<NonNull<Self>>,
    is_linked: bool,
    _pinned: PhantomPinned,
}

/// A member's place, in a future or on a stack.
#[derive(Debug)]
pub(crate) struct Berth {
    /// Whether the member may have been at the lines: written by the one who has the place, before it goes there.
    has_come: bool,
    driver: UnsafeCell<Driver>,
}

// SAFETY: the member belongs to the one who has the lines, which threads share under a lock; the rest is plain.
unsafe impl Send for Berth {}

// SAFETY: a shared reference leads to nothing.
unsafe impl Sync for Berth {}

impl Berth {
    pub(crate) const fn new() -> Self {
        let driver =
            Driver { waker: None, before: None, after: None, is_linked: false, _pinned: PhantomPinned };
        Self { has_come: false, driver: UnsafeCell::new(driver) }
    }

    /// The member, which goes to the lines from now on.
    pub(crate) const fn coming(&mut self) -> NonNull<Driver> {
        self.has_come = true;
        self.member()
    }

    const fn member(&self) -> NonNull<Driver> {
        // SAFETY: it is there.
        unsafe { NonNull::new_unchecked(self.driver.get()) }
    }

    /// The member, if it may be at the lines, and is to leave them.
    pub(crate) const fn leaving(&mut self) -> Option<NonNull<Driver>> {
        if mem::replace(&mut self.has_come, false) { Some(self.member()) } else { None }
    }
}

/// A member; `None` is the queue itself.
type Member = Option<NonNull<Driver>>;

/// Who is in charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Charge {
    Open,
    /// A member has been told that the time has changed, and has not come yet.
    Told(Member),
    /// A member has come, and comes again at this instant: its timer is set, or is about to be, by one who opens the charge if that unwinds.
    Armed(Member, Timestamp),
}

/// An alarm that is later than this is taken for lost: its timer has ended, say, or the waker of its task has panicked.
const LOST_AFTER: Duration = Duration::from_millis(100);

/// Those who can see to the time in one way.
#[derive(Debug)]
pub(crate) struct Crew {
    /// The queue's own waker: it is preferred, as it always comes.
    attendant: Option<Waker>,
    first: Option<NonNull<Driver>>,
    last: Option<NonNull<Driver>>,
    charge: Charge,
}

// SAFETY: members are handed from thread to thread with the lines, under their lock; wakers can be sent.
unsafe impl Send for Crew {}

/// Who is to be told, by this waker.
pub(crate) enum Told {
    Attendant(Waker),
    Driver(Waker),
}

impl Crew {
    pub(crate) const EMPTY: Self = Self { attendant: None, first: None, last: None, charge: Charge::Open };

    pub(crate) const fn is_attended(&self) -> bool {
        self.attendant.is_some()
    }

    /// Has the queue itself see to the time, by this waker.
    pub(crate) fn attend(&mut self, waker: Waker) -> Option<Waker> {
        self.open();
        self.attendant.replace(waker)
    }

    /// Nobody is known to be armed.
    pub(crate) fn open(&mut self) {
        self.charge = Charge::Open;
    }

    /// Whether a member may take charge without taking it from another one.
    #[cfg(all(feature = "std", not(loom)))]
    pub(crate) fn is_open_to(&self, member: NonNull<Driver>) -> bool {
        match self.charge {
            Charge::Open => true,
            Charge::Told(other) | Charge::Armed(other, _) => other == Some(member),
        }
    }

    /// The queue itself, or a member, is about to arm for `due`.
    pub(crate) fn take_charge(&mut self, member: Member, due: Timestamp) {
        self.charge = Charge::Armed(member, due);
    }

    /// A member is here, and is to be told by another waker from now on. The one before stays in `waker`.
    ///
    /// # Safety
    ///
    /// The member is in this crew or in none, and stays where it is until it has left.
    pub(crate) unsafe fn come(&mut self, member: NonNull<Driver>, waker: &mut Option<Waker>) {
        // SAFETY: the member is ours, as the lines are; its neighbour is linked.
        unsafe {
            let new = member.as_ptr();
            mem::swap(&mut (*new).waker, waker);
            if (*new).is_linked {
                return;
            }
            ((*new).is_linked, (*new).before, (*new).after) = (true, self.last, None);
            match self.last {
                Some(last) => (*last.as_ptr()).after = Some(member),
                None => self.first = Some(member),
            }
            self.last = Some(member);
        }
    }

    /// A member goes: if it was in charge, another one is to be told. Returns its waker, and whether it was.
    ///
    /// # Safety
    ///
    /// The member is in this crew or in none. Afterwards it is in none.
    pub(crate) unsafe fn leave(&mut self, member: NonNull<Driver>) -> (Option<Waker>, bool) {
        // SAFETY: the member is ours, as the lines are; its neighbours are linked.
        unsafe {
            let old = member.as_ptr();
            if mem::replace(&mut (*old).is_linked, false) {
                let (before, after) = ((*old).before.take(), (*old).after.take());
                match before {
                    Some(before) => (*before.as_ptr()).after = after,
                    None => self.first = after,
                }
                match after {
                    Some(after) => (*after.as_ptr()).before = before,
                    None => self.last = before,
                }
            }
            let was_in_charge = matches!(
                self.charge,
                Charge::Told(Some(one)) | Charge::Armed(Some(one), _) if one == member
            );
            if was_in_charge {
                self.open();
            }
            ((*old).waker.take(), was_in_charge)
        }
    }

    /// Tells a member, if something is `due` ever, and none has been told, and none is armed for that; or its alarm should have come long before `now`.
    pub(crate) fn tell(&mut self, due: Timestamp, now: Timestamp) -> Option<Told> {
        if due == Timestamp::MAX {
            return None;
        }
        let in_charge = match self.charge {
            Charge::Told(_) => return None,
            Charge::Armed(_, at) if at <= due && at.saturating_add(LOST_AFTER) >= now => return None,
            Charge::Armed(member, _) => member,
            Charge::Open => None,
        };
        if let Some(attendant) = &self.attendant {
            self.charge = Charge::Told(None);
            return Some(Told::Attendant(attendant.clone()));
        }
        self.tell_one(in_charge, None).map(Told::Driver)
    }

    /// `member` could not arm: another one is told, if there is any, which is not the queue itself.
    pub(crate) fn pass_on(&mut self, member: Member) -> Option<Waker> {
        self.open();
        self.tell_one(None, member)
    }

    /// Tells `first`, or else the first one that can be told, but not `but`.
    fn tell_one(&mut self, first: Member, but: Member) -> Option<Waker> {
        let mut next = self.first;
        let others = core::iter::from_fn(|| {
            let member = next?;
            // SAFETY: linked members are valid, and belong to the one who has the lines.
            next = unsafe { (*member.as_ptr()).after };
            Some(member)
        });
        let mut members = first.into_iter().chain(others).filter(|member| Some(*member) != but);
        // SAFETY: the same; one that is in charge is linked.
        let told = members
            .find_map(|member| unsafe { (*member.as_ptr()).waker.take().map(|waker| (member, waker)) });
        told.map(|(member, waker)| {
            self.charge = Charge::Told(Some(member));
            waker
        })
    }

    /// The waker of a member that can be told, whether or not anything is due.
    pub(crate) fn next_waker(&mut self) -> Option<Waker> {
        let charge = self.charge;
        let waker = self.tell_one(None, None);
        self.charge = charge;
        waker
    }
}
