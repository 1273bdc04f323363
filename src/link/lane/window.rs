//! How many keys an owner grants to one thread in advance.
//!
//! A window begins with the thread's fair share of the keys. It doubles when the thread has used
//! all of them at once or was refused for want of keys, and halves while the thread uses few. So
//! many threads that use little hold little together, and a thread that uses much has what it
//! needs.
//!
//! The window of a thread that may be short-lived begins smaller, and also doubles each time that
//! the thread has used half of it, until it is the fair share. So a thread that uses a few keys is
//! granted few, and one that uses many is soon granted as many at once as any other thread.

/// The number of keys that an owner grants to one thread in advance, and its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// At least 1.
    size: usize,
    /// The size at the beginning, to which the window shrinks again. At most `share`.
    first: usize,
    /// The thread's fair share.
    share: usize,
    max: usize,
}

impl Window {
    /// The window of another thread, of `threads` with it, which share `keys`. It is at least 1 and
    /// never larger than `max`, which is at least 1.
    pub(crate) fn share_of(keys: usize, threads: usize, max: usize) -> Self {
        let share = (keys / threads.max(1)).clamp(1, max);
        Self { size: share, first: share, share, max }
    }

    /// The window, if it begins with no more than `first` keys, which is at least 1.
    pub(crate) fn beginning_with(self, first: usize) -> Self {
        let first = first.min(self.share);
        Self { size: first, first, ..self }
    }

    #[inline]
    pub(crate) fn size(self) -> usize {
        self.size
    }

    pub(crate) fn max(self) -> usize {
        self.max
    }

    /// Makes the window at least this large, up to its maximum.
    pub(crate) fn grow_to(&mut self, size: usize) {
        self.size = self.size.max(size.min(self.max));
    }

    /// Doubles the window, up to the fair share. False if it is as large already.
    pub(crate) fn grow_to_share(&mut self) -> bool {
        let size = self.size;
        self.grow_to(size.saturating_mul(2).min(self.share));
        self.size > size
    }

    /// Halves the window.
    pub(crate) fn shrink(&mut self) {
        self.size = (self.size / 2).max(self.first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_share_is_between_one_and_the_maximum() {
        let size = |keys, threads| Window::share_of(keys, threads, 1_024).size();
        assert_eq!((size(32_768, 1), size(32_768, 64), size(32_768, 2_000)), (1_024, 512, 16));
        assert_eq!((size(312, 1), size(312, 2_000), size(0, 0)), (312, 1, 1));
    }

    #[test]
    fn small_window_grows_to_its_share_and_shrinks_to_its_beginning() {
        let mut window = Window::share_of(200, 2, 1_024).beginning_with(16);
        let mut sizes = vec![window.size()];
        while window.grow_to_share() {
            sizes.push(window.size());
        }
        assert_eq!(sizes, [16, 32, 64, 100]);
        window.grow_to(1_000);
        assert!(!window.grow_to_share());
        (0..10).for_each(|_| window.shrink());
        assert_eq!(window.size(), 16);
        let of_share = Window::share_of(3, 1, 1_024).beginning_with(16);
        assert_eq!(of_share.size(), 3, "it is not larger than the share");
    }

    #[test]
    fn window_grows_to_its_maximum_and_shrinks_to_its_share() {
        let mut window = Window::share_of(64, 16, 100);
        let sizes = std::iter::repeat_with(|| {
            window.grow_to(window.size() * 2);
            window.size()
        });
        assert_eq!(sizes.take(6).collect::<Vec<_>>(), [8, 16, 32, 64, 100, 100]);
        for expected in [50, 25, 12, 6, 4, 4] {
            window.shrink();
            assert_eq!(window.size(), expected);
        }
        window.grow_to(3);
        assert_eq!(window.size(), 4, "it does not shrink");
    }
}
