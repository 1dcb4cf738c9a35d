//! Options of mounts (`CLI-16`, `CLI-17`), sizes and times (`CLI-2`).
#![no_main]
#![allow(dead_code)]

#[path = "../../crates/cli/src/settings.rs"]
mod settings;
#[path = "../../crates/cli/src/units.rs"]
mod units;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let mut settings = settings::Settings::default();
    if settings.add_list(text).is_ok() {
        let mut again = settings::Settings::default();
        let list = settings.to_list();
        assert_eq!(again.add_list(&list), Ok(()), "CLI-16: {list}");
        assert_eq!(again, settings, "CLI-16: {list}");
    }
    let _ = units::parse_size(text);
    let _ = units::parse_time(text);
    let _ = units::parse_wait(text);
    let _ = units::parse_mode(text);
});
