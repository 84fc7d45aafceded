//! Pins: only those of this version are used, and only ecn's own are removed.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use aya::maps::{HashMap, Map, MapData};
use ecn_core::{
    abi::{self, name},
    flow::Key,
};
use ecn_tests::{kernel_test, note, running::pin, s};
use ecn_user::datapath::{Datapath, Error, Maps, Sizes, pin_dir};

const SIZES: Sizes = Sizes {
    bridges: 1,
    flows: 1024,
};

fn open() -> Datapath {
    Datapath::open(&pin(), SIZES).expect("load")
}

/// Pins of others beside ours stay; those of earlier agents are removed.
#[test]
fn pins_of_others_stay() {
    kernel_test!();
    drop(open());
    assert!(!pin().exists(), "nothing is there, so nothing stays");
    let (others, before) = (pin().join("others"), pin().join("v1/maps"));
    fs::create_dir_all(&others).expect("another's directory");
    fs::create_dir_all(&before).expect("a directory of ABI 1");
    let datapath = open();
    assert!(others.exists() && !before.exists());
    drop(datapath);
    assert!(others.exists() && !pin_dir(&pin()).exists());
    fs::remove_dir(&others).expect("remove it");
    drop(open());
    assert!(!pin().exists());
}

/// A configuration may name any directory: files are not pins, and stay.
#[test]
fn files_are_not_touched() {
    kernel_test!();
    let folder = std::env::temp_dir().join(format!("ecn-t-pins-{}", std::process::id()));
    let precious = folder.join("v1/precious");
    fs::create_dir_all(folder.join("v1")).expect("a folder");
    fs::write(&precious, "data").expect("a file");
    let refused = Datapath::open(&folder, SIZES).err();
    let there = precious.exists();
    fs::remove_dir_all(&folder).expect("remove it");
    assert!(there, "a file was removed");
    assert!(matches!(refused, Some(Error::NotBpffs(_))), "{refused:?}");
}

/// A pin's name does not imply its contents: sizes, type and ABI are compared.
#[test]
fn pins_of_another_layout_are_refused() {
    kernel_test!();
    let maps = pin_dir(&pin()).join("maps");
    let datapath = open();
    assert!(datapath.maps().is_ok());
    let refused = || Maps::open(&pin()).err().expect("refused").to_string();

    let put = |of: &str, at: &str| fs::rename(maps.join(of), maps.join(at)).expect("rename a pin");
    put(name::RECEIVER, "aside");
    put(name::LIMIT, name::RECEIVER);
    let error = refused();
    assert!(error.contains("map ECN_RECEIVER at "), "{error}");
    let expected = "Array with keys of 4 and values of 8 bytes, expected Hash with 40 and ";
    assert!(error.contains(expected), "{error}");
    assert!(
        error.contains("another version of ecn, run `ecn clean`"),
        "{error}"
    );
    put(name::RECEIVER, name::LIMIT);
    put("aside", name::RECEIVER);
    assert!(datapath.maps().is_ok());

    // The same sizes, another map type.
    put(name::LIMIT, "aside");
    put(name::COUNT, name::LIMIT);
    put("aside", name::COUNT);
    let error = refused();
    assert!(error.contains("map ECN_COUNT"), "{error}");
    assert!(
        error.contains("expected PerCpuArray with 4 and 8"),
        "{error}"
    );
    put(name::COUNT, "aside");
    put(name::LIMIT, name::COUNT);
    put("aside", name::LIMIT);

    let mut ours = datapath.maps().expect("maps");
    let control = abi::Control {
        abi: abi::ABI + 1,
        ..abi::Control::default()
    };
    ours.set_control(control).expect("another ABI");
    let error = refused();
    let expected = format!("ABI {}, expected {}", abi::ABI + 1, abi::ABI);
    assert!(error.contains(&expected), "{error}");

    // A new agent does not reuse the existing maps.
    let aside = pin().join("aside");
    fs::rename(pin_dir(&pin()), &aside).expect("rename the pins");
    drop(datapath);
    fs::rename(&aside, pin_dir(&pin())).expect("rename them back");
    refused();
    let datapath = open();
    let control = datapath.maps().expect("maps").control();
    assert_eq!(control.expect("control").abi, 0);
}

const KEY: usize = size_of::<Key>();
const VALUE: usize = size_of::<abi::LockedReceiver>();

fn receivers(path: &Path) -> HashMap<MapData, [u8; KEY], [u8; VALUE]> {
    let map = Map::HashMap(MapData::from_pin(path).expect("the pinned map"));
    map.try_into().expect("a hash")
}

/// If the current key was deleted, the kernel restarts from the first: a walk ends all the same, without duplicates.
#[test]
fn a_walk_ends_while_entries_come_and_go() {
    kernel_test!();
    let datapath = open();
    let maps = datapath.maps().expect("maps");
    let path = pin_dir(&pin()).join("maps").join(name::RECEIVER);
    let stop = AtomicBool::new(false);
    let (most, twice) = std::thread::scope(|scope| {
        for part in 0..2u8 {
            let (path, stop) = (&path, &stop);
            scope.spawn(move || {
                let mut map = receivers(path);
                let key = |n: u8| {
                    let mut key = [0; KEY];
                    (key[0], key[1]) = (part, n);
                    key
                };
                while !stop.load(Ordering::Relaxed) {
                    (0..200).for_each(|n| map.insert(key(n), [0; VALUE], 0).expect("insert"));
                    (0..200).for_each(|n| map.remove(&key(n)).expect("remove"));
                }
            });
        }
        let (mut most, mut twice, mut walks) = (0, 0, 0);
        let since = Instant::now();
        // On a busy machine the writers start late.
        while walks < 500 || most < 100 && since.elapsed() < s(20) {
            walks += 1;
            let mut keys: Vec<_> = maps
                .receivers()
                .expect("a walk")
                .into_iter()
                .map(|(key, _)| key)
                .collect();
            most = most.max(keys.len());
            keys.sort_unstable();
            twice += keys.windows(2).filter(|pair| pair[0] == pair[1]).count();
        }
        stop.store(true, Ordering::Relaxed);
        (most, twice)
    });
    note(&format!("pins: walks of up to {most} entries"));
    assert!((100..=400).contains(&most), "{most}");
    assert_eq!(twice, 0);
}
