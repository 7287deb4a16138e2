//! Places for what events carry: an event is a few bytes, and names its payload by its place here.

use crate::numbers::narrow;

/// Values at numbered places, which are used again.
#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Puts a value into a free place.
    pub fn put(&mut self, value: T) -> u32 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = Some(value);
            return place;
        }
        self.places.push(Some(value));
        narrow(self.places.len() - 1)
    }

    /// Takes the value of a place out.
    ///
    /// # Panics
    /// If the place is empty: each event's payload is taken once.
    pub fn take(&mut self, place: u32) -> T {
        self.free.push(place);
        self.places[place as usize].take().expect("an event's payload is taken once")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let mut slab = Slab::default();
        let (a, b) = (slab.put('a'), slab.put('b'));
        assert_eq!((slab.take(a), slab.put('c')), ('a', a));
        assert_eq!((slab.take(b), slab.take(a)), ('b', 'c'));
    }
}
