//! Lists that have names: the keys of a group, the operations that watch a key.
//!
//! Members are chained through a slab, so a member leaves its list in O(1).
//!
//! Invariants: a list is in the order in which its members came, and exists only while it has any.
//! Absent by design: code of the user, except `Eq` of names.
//!
//! Cost: 16 bytes for each member beside what it holds, and 32 bytes and the name for each list.

use corewheel_shard::List;
use hashbrown::HashTable;
use slab::Slab;

pub(crate) struct Chains<N, M> {
    members: Slab<Member<M>>,
    lists: Slab<Named<N>>,
    /// The lists by the hashes of their names: indices into `lists`.
    by_name: HashTable<u32>,
}

struct Member<M> {
    value: M,
    list: u32,
    link: [u32; 2],
}

fn link<M>(members: &mut Slab<Member<M>>, index: u32) -> &mut [u32; 2] {
    &mut members[index as usize].link
}

struct Named<N> {
    name: N,
    hash: u64,
    members: List,
}

impl<N, M> Chains<N, M> {
    pub(crate) fn new() -> Self {
        Self { members: Slab::new(), lists: Slab::new(), by_name: HashTable::new() }
    }

    /// The list of a name.
    pub(crate) fn find(&self, hash: u64, is_name: impl Fn(&N) -> bool) -> Option<u32> {
        self.by_name.find(hash, |list| is_name(&self.lists[*list as usize].name)).copied()
    }

    /// Makes a list whose name has none, for a member that is appended next.
    #[inline]
    pub(crate) fn add(&mut self, hash: u64, name: N) -> u32 {
        let list = Named { name, hash, members: List::default() };
        let list = self.lists.insert(list) as u32;
        let lists = &self.lists;
        self.by_name.insert_unique(hash, list, |list| lists[*list as usize].hash);
        list
    }

    /// Appends a member to a list.
    #[inline]
    pub(crate) fn append(&mut self, list: u32, value: M) -> u32 {
        let member = self.members.insert(Member { value, list, link: [0; 2] }) as u32;
        let known = &mut self.lists[list as usize];
        known.members.append(&mut self.members, link, member);
        member
    }

    /// Takes a member out of its list. With the last member, the list's name is returned.
    #[inline]
    pub(crate) fn remove(&mut self, member: u32) -> (M, Option<N>) {
        let list = self.members[member as usize].list;
        let known = &mut self.lists[list as usize];
        known.members.remove(&mut self.members, link, member);
        let is_empty = known.members.first().is_none();
        let value = self.members.remove(member as usize).value;
        if !is_empty {
            return (value, None);
        }
        let Named { name, hash, .. } = self.lists.remove(list as usize);
        if let Ok(place) = self.by_name.find_entry(hash, |known| *known == list) {
            place.remove();
        }
        (value, Some(name))
    }

    /// Takes all names out. No member is left.
    pub(crate) fn take_names(&mut self) -> impl Iterator<Item = N> {
        self.members.clear();
        self.by_name.clear();
        self.lists.drain().map(|list| list.name)
    }

    /// The first member of a list.
    pub(crate) fn first(&self, list: u32) -> Option<u32> {
        self.lists[list as usize].members.first()
    }

    /// What the last member of a list holds.
    pub(crate) fn last(&self, list: u32) -> Option<&M> {
        self.lists[list as usize].members.last().map(|last| self.get(last))
    }

    /// The member after another one in its list.
    pub(crate) fn next(&self, member: u32) -> Option<u32> {
        List::next(self.members[member as usize].link)
    }

    /// What a member holds.
    pub(crate) fn get(&self, member: u32) -> &M {
        &self.members[member as usize].value
    }

    /// What the members of a list hold, in order.
    pub(crate) fn members(&self, list: u32) -> impl Iterator<Item = &M> {
        std::iter::successors(self.first(list), |member| self.next(*member))
            .map(|member| self.get(member))
    }

    /// The name of a member's list.
    pub(crate) fn name_of(&self, member: u32) -> &N {
        &self.lists[self.members[member as usize].list as usize].name
    }

    /// The name of a list; `None` if there is no such list any more.
    pub(crate) fn name(&mut self, list: u32) -> Option<&mut N> {
        self.lists.get_mut(list as usize).map(|list| &mut list.name)
    }

    /// How many members all lists have.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// How many lists there are.
    pub(crate) fn lists(&self) -> usize {
        self.lists.len()
    }
}
