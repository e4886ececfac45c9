use proptest::prelude::*;

use super::PageMap;
use crate::range::AddressRange;

const PAGE: usize = 4096;
const PAGES: usize = 300;
const BASE: usize = 1 << 30;

fn pages(first: usize, count: usize) -> AddressRange {
    AddressRange::new(BASE + first * PAGE, count * PAGE)
}

#[test]
fn a_new_map_has_no_mapped_page() {
    let map = PageMap::new(pages(0, PAGES), PAGE);
    assert_eq!(map.mapped_page_count(pages(0, PAGES)), 0);
    assert_eq!(map.first_unmapped_run(pages(3, 200)), Some(pages(3, 200)));
    assert_eq!(map.first_mapped_run(pages(0, PAGES)), None);
}

#[test]
fn a_range_touches_the_pages_it_covers_in_part() {
    let mut map = PageMap::new(pages(0, PAGES), PAGE);
    map.set_mapped(pages(2, 1));
    let straddling = AddressRange::new(BASE + 2 * PAGE + 100, PAGE);
    assert_eq!(map.mapped_page_count(straddling), 1);
    assert_eq!(map.first_unmapped_run(straddling), Some(pages(3, 1)));
    assert!(map.is_mapped(AddressRange::new(BASE + 2 * PAGE + 100, PAGE - 100)));
}

proptest! {
    #[test]
    fn runs_and_counts_agree_with_a_vector_of_states(
        operations in prop::collection::vec((0..3u8, 0..PAGES, 1..PAGES), 1..40),
        query in (0..PAGES, 1..PAGES),
    ) {
        let mut map = PageMap::new(pages(0, PAGES), PAGE);
        let mut model = [(false, false); PAGES];
        for (operation, first, count) in operations {
            let count = count.min(PAGES - first);
            for state in &mut model[first..first + count] {
                *state = match operation {
                    0 => (true, true),
                    1 => (false, false),
                    _ => (state.0, false),
                };
            }
            match operation {
                0 => map.set_mapped(pages(first, count)),
                1 => map.set_unmapped(pages(first, count)),
                _ => map.set_dirty(pages(first, count)),
            }
        }
        let (first, count) = (query.0, query.1.min(PAGES - query.0));
        let range = pages(first, count);
        let first_run = |wanted: &dyn Fn((bool, bool)) -> bool| {
            let start = (first..first + count).find(|&page| wanted(model[page]))?;
            let end = (start..first + count).find(|&page| !wanted(model[page])).unwrap_or(first + count);
            Some(pages(start, end - start))
        };
        prop_assert_eq!(map.mapped_page_count(range), (first..first + count).filter(|&p| model[p].0).count());
        prop_assert_eq!(map.is_mapped(range), (first..first + count).all(|p| model[p].0));
        prop_assert_eq!(map.first_unmapped_run(range), first_run(&|state| !state.0));
        prop_assert_eq!(map.first_mapped_run(range), first_run(&|state| state.0));
        prop_assert_eq!(map.first_clean_run(range), first_run(&|state| state.1));
    }
}
