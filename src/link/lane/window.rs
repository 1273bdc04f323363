//! How many keys an owner grants to one client in advance.
//!
//! A window begins with the client's fair share of the keys, doubles when the client has used all
//! of them at once or was refused for want of keys, and halves while the client uses few. So many
//! clients that use little hold little together, and a client that uses much has what it needs.

/// The number of keys that an owner grants to one client in advance, and its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// At least 1.
    size: usize,
    /// The size at the beginning, to which the window shrinks again.
    share: usize,
    max: usize,
}

impl Window {
    /// The window of another client, of `clients` with it, which share `keys`. It is at least 1 and
    /// never larger than `max`, which is at least 1.
    pub(crate) fn share_of(keys: usize, clients: usize, max: usize) -> Self {
        let share = (keys / clients.max(1)).clamp(1, max);
        Self { size: share, share, max }
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

    /// Halves the window.
    pub(crate) fn shrink(&mut self) {
        self.size = (self.size / 2).max(self.share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_share_is_between_one_and_the_maximum() {
        let size = |keys, clients| Window::share_of(keys, clients, 1_024).size();
        assert_eq!((size(32_768, 1), size(32_768, 64), size(32_768, 2_000)), (1_024, 512, 16));
        assert_eq!((size(312, 1), size(312, 2_000), size(0, 0)), (312, 1, 1));
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
