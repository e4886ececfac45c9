use super::*;
use crate::{Arena, Request, SimulatedUpstream};

#[test]
fn options_are_read_with_their_values() {
    let conf: Conf = "policy:torch, max_split_size_mb:256,roundup_power2_divisions:[64:8,256:2,>:1],\
                      garbage_collection_threshold:0.8"
        .parse()
        .unwrap();
    assert_eq!(conf.policy(), Policy::Torch);
    assert_eq!(conf.max_split_bytes, Some(256 << 20));
    let divisions = conf.roundup_power2_divisions.unwrap();
    assert_eq!((divisions[0], divisions[6], divisions[7], divisions[8], divisions[9]), (8, 8, 2, 2, 1));
    assert_eq!(conf.garbage_collection_threshold, Some(0.8));
    let expandable: Conf = "policy:torch,expandable_segments:True".parse().unwrap();
    assert_eq!(expandable.policy(), Policy::Expandable);
    assert_eq!("policy:bfc,allow_growth:False".parse::<Conf>().unwrap().allow_growth, Some(false));
    assert_eq!("".parse::<Conf>().unwrap(), Conf::default());
}

#[test]
fn what_is_not_an_option_is_an_error_that_names_the_known_ones() {
    let error = |text: &str| text.parse::<Conf>().unwrap_err().to_string();
    assert!(error("polcy:torch").contains("max_split_size_mb"), "{}", error("polcy:torch"));
    assert!(error("policy:fast").contains("expandable"), "{}", error("policy:fast"));
    for wrong in [
        "policy",
        "max_split_size_mb:19",
        "max_split_size_mb:99999999999999999",
        "garbage_collection_threshold:1",
        "garbage_collection_threshold:nan",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[64:8",
        "roundup_power2_divisions:[64:8,32:2]",
        "expandable_segments:yes",
        "medium_limit_mb:-1",
        "max_cached_mb:99999999999999999",
        "slack_percent:none",
    ] {
        assert!(wrong.parse::<Conf>().is_err(), "{wrong}");
    }
}

#[test]
fn an_option_of_another_policy_is_refused() {
    let setting = Setting { range_bytes: 1 << 30, ..Setting::default() };
    let conf: Conf = "policy:buddy,max_split_size_mb:64".parse().unwrap();
    let error = conf.placement(setting).unwrap_err();
    assert_eq!(error.to_string(), "policy buddy has no option max_split_size_mb: it has none of its own");
    for (policy, option) in
        [("torch", "allow_growth:True"), ("bfc", "mode:moving"), ("bfc", "large_segment_size_mb:8")]
    {
        let conf: Conf = format!("policy:{policy},{option}").parse().unwrap();
        assert!(matches!(conf.placement(setting), Err(ConfError::NotOfPolicy { .. })), "{policy}");
    }
    for policy in Policy::ALL {
        let conf = Conf { policy: Some(policy), ..Conf::default() };
        let name = if policy == Policy::Segments { "pages" } else { policy.as_str() };
        assert_eq!(conf.placement(setting).unwrap().name(), name);
    }
}

#[test]
fn the_classes_of_policy_buckets_are_set_in_mebibytes() {
    let setting = Setting { range_bytes: 1 << 30, ..Setting::default() };
    // What 3 MiB and then 40 MiB reserve tells their classes, and what stays of them the options.
    let reserved = |text: &str| {
        let conf: Conf = text.parse().unwrap();
        let upstream = SimulatedUpstream::builder().build();
        let mut arena = Arena::from_boxed(conf.placement(setting).unwrap(), upstream);
        [3_usize, 40].map(|mib| {
            let block = arena.allocate(Request::new(mib << 20)).unwrap();
            arena.free(block.addr).unwrap();
            arena.stats().reserved.current >> 20
        })
    };
    assert_eq!(reserved("policy:buckets"), [32, 40]);
    assert_eq!(reserved("policy:buckets,slack_percent:off"), [32, 72]);
    assert_eq!(reserved("policy:buckets,slack_percent:80"), [32, 72]);
    assert_eq!(reserved("policy:buckets,slack_percent:79"), [32, 40]);
    assert_eq!(reserved("policy:buckets,small_limit_mb:4,slack_percent:off"), [8, 48]);
    assert_eq!(reserved("policy:buckets,medium_limit_mb:2,slack_percent:off"), [4, 44]);
    assert_eq!(reserved("policy:buckets,max_cached_mb:33,slack_percent:off"), [32, 32]);
    let wrong: Conf = "policy:buckets,small_limit_mb:9,medium_limit_mb:8".parse().unwrap();
    assert!(matches!(wrong.placement(setting), Err(ConfError::Value { key: "medium_limit_mb", .. })));
}

#[test]
fn errors_name_the_options_that_there_are() {
    let message = |text: &str| {
        let conf: Result<Conf, _> = text.parse();
        conf.and_then(|conf| conf.placement(Setting::default()).map(|_| ())).unwrap_err().to_string()
    };
    let of_torch = message("policy:torch,mode:moving");
    for key in Conf::KEYS.into_iter().filter(|key| *key != "policy") {
        assert_eq!(
            of_torch.contains(key),
            Policy::Torch.has_option(key) || key == "mode",
            "{key}: {of_torch}"
        );
    }
    assert!(message("policy:simple,mode:moving").ends_with("it has none of its own"));
    assert!(message("policy=torch").contains("such as policy:pages"));
    let limits = message("policy:buckets,small_limit_mb:10,medium_limit_mb:5");
    assert!(limits.starts_with("medium_limit_mb:5 is not possible: small_limit_mb"), "{limits}");
    let limits = message("policy:buckets,small_limit_mb:200");
    assert!(limits.starts_with("small_limit_mb:200 is not possible: medium_limit_mb"), "{limits}");
}
