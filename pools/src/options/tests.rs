use super::*;

fn options(text: &str) -> PoolOptions {
    text.parse().unwrap()
}

/// What a pool gets for which `chosen` was, with `around` in the environment.
fn resolved(chosen: &str, around: &str) -> Resolved {
    options(chosen).resolve(&options(around), Policy::Pages, |_| true).unwrap()
}

#[test]
fn options_of_pools_and_of_placements_stand_in_one_text() {
    let read = options(
        "policy:buckets, small_limit_mb:2,no_split:False,limit_mb:64,min_bytes:4096,use_on_oom:True,\
         guard:true,release_threshold_mb:10,garbage_collection_threshold:0.5",
    );
    assert_eq!(read.placement.policy(), Policy::Buckets);
    assert_eq!(read.placement.small_limit_bytes, Some(2 << 20));
    assert_eq!((read.no_split, read.guard, read.use_on_oom), (Some(false), Some(true), Some(true)));
    assert_eq!((read.limit_bytes, read.hard_limit), (Some(64 << 20), false));
    assert_eq!((read.min_bytes, read.release_threshold_bytes), (Some(4096), Some(10 << 20)));
    let hard = options("limit_mb:64,hard_limit_mb:32");
    assert_eq!((hard.limit_bytes, hard.hard_limit), (Some(32 << 20), true));
    assert_eq!(options(""), PoolOptions::default());
}

#[test]
fn an_unknown_key_is_answered_with_the_keys_of_both_kinds() {
    let error = "limit:3".parse::<PoolOptions>().unwrap_err();
    let ConfError::UnknownKey { key, known } = &error else { panic!("{error}") };
    assert_eq!((key.as_str(), known.len()), ("limit", Conf::KEYS.len() + PoolOptions::KEYS.len()));
    for key in ["limit_mb", "max_split_size_mb"] {
        assert!(error.to_string().contains(key), "{error}");
    }
    for wrong in [
        "limit_mb:1",
        "limit_mb:99999999999999999",
        "hard_limit_mb:-3",
        "min_bytes:4k",
        "guard:1",
        "no_split:yes",
        "use_on_oom:",
        "release_threshold_mb:0.5",
        "policy",
    ] {
        assert!(wrong.parse::<PoolOptions>().is_err(), "{wrong}");
    }
}

#[test]
fn what_a_program_chose_wins_over_what_is_around_it() {
    let got = resolved("limit_mb:8,guard:False", "policy:buddy,hard_limit_mb:4,guard:True,min_bytes:5");
    assert_eq!(got.placement, Conf::of(Policy::Buddy));
    assert_eq!((got.limit_bytes, got.hard_limit, got.guard, got.min_bytes), (Some(8 << 20), false, false, 5));
    let got = resolved("policy:torch", "policy:torch,expandable_segments:True,max_split_size_mb:64");
    assert_eq!(got.placement, Conf::of(Policy::Torch).max_split_bytes(64 << 20));
    let got = resolved("", "policy:torch,expandable_segments:True");
    assert_eq!(got.placement, Conf::of(Policy::Expandable));
}

#[test]
fn what_is_around_applies_as_far_as_the_chosen_policy_has_it() {
    let around = "policy:torch,max_split_size_mb:64,limit_mb:64";
    let got = resolved("policy:pages", around);
    assert_eq!((got.placement, got.limit_bytes), (Conf::of(Policy::Pages), Some(64 << 20)));
    // An option of one policy, or blocks that are never cut, ask for a policy that has them.
    for chosen in ["mode:moving", "no_split:True"] {
        assert_eq!(resolved(chosen, around).placement.policy(), Policy::Pages, "{chosen}");
    }
    let got = resolved("no_split:True", "policy:pages,mode:moving");
    assert_eq!((got.placement, got.no_split), (Conf::of(Policy::Pages), true));
    let got = resolved("policy:buddy", "no_split:True");
    assert!(!got.no_split);
    let got = options("").resolve(&options("policy:segments"), Policy::Pages, |_| false).unwrap();
    assert_eq!(got.placement.policy(), Policy::Pages);
}

#[test]
fn what_was_chosen_and_the_policy_lacks_is_refused() {
    for wrong in ["policy:buddy,mode:moving", "policy:buddy,no_split:True", "expandable_segments:True"] {
        let error = options(wrong).resolve(&PoolOptions::default(), Policy::Pages, |_| true).unwrap_err();
        assert!(matches!(error, ConfError::NotOfPolicy { .. }), "{wrong}");
    }
}

#[test]
fn a_threshold_is_the_placements_where_it_has_one_and_else_the_pools() {
    let got = resolved("policy:torch,garbage_collection_threshold:0.5", "");
    assert_eq!(got.placement.garbage_collection_threshold, Some(0.5));
    assert_eq!(got.garbage_collection_threshold, None);
    let got = resolved("policy:torch,expandable_segments:True", "garbage_collection_threshold:0.5");
    assert_eq!(got.placement, Conf::of(Policy::Expandable));
    assert_eq!(got.garbage_collection_threshold, Some(0.5));
    let got = resolved("policy:buckets", "garbage_collection_threshold:0.5");
    assert_eq!(got.placement, Conf::of(Policy::Buckets));
    assert_eq!(got.garbage_collection_threshold, Some(0.5));
}

#[test]
fn sizes_are_read_and_count_only_where_they_are_chosen() {
    use crate::sizing::PoolSize;
    let read = options("fixed_size_mb:64,growth_factor:1.5,headroom_percent:12.5");
    assert_eq!(read.size, Some(PoolSize::Fixed(64 << 20)));
    assert_eq!((read.growth_factor, read.headroom_share), (Some(1.5), Some(0.125)));
    assert_eq!(options("fixed_size_mb:64,initial_size_mb:2").size, Some(PoolSize::Initial(2 << 20)));
    assert_eq!(options("initial_size_mb:2,fixed_size_mb:all").size, Some(PoolSize::AllButHeadroom));
    for wrong in [
        "fixed_size_mb:1",
        "fixed_size_mb:-1",
        "initial_size_mb:all",
        "growth_factor:0.9",
        "growth_factor:17",
        "growth_factor:NaN",
        "headroom_percent:51",
        "headroom_percent:-1",
    ] {
        assert!(wrong.parse::<PoolOptions>().is_err(), "{wrong}");
    }
    let got = resolved("", "fixed_size_mb:64,headroom_percent:20");
    assert_eq!((got.size, got.headroom_share), (None, 0.1));
    // A policy of the environment without sizes is not that of a pool for which one was chosen.
    let got = resolved("initial_size_mb:8", "policy:simple");
    assert_eq!((got.placement.policy(), got.size), (Policy::Pages, Some(PoolSize::Initial(8 << 20))));
    let around = options("fixed_size_mb:64,limit_mb:80").only_sizes();
    assert_eq!((around.size, around.limit_bytes), (Some(PoolSize::Fixed(64 << 20)), None));
}
