//! Tests of the store of device programs: damaged files, permissions and eviction.

use std::os::unix::fs::PermissionsExt;

use super::*;

const KEY: Digest = [7; 32];

fn store(folder: &Path) -> ProgramStore {
    ProgramStore::open(&folder.join("programs"), 1000).unwrap()
}

fn only_file(store: &ProgramStore) -> PathBuf {
    let files: Vec<_> = fs::read_dir(&store.folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

#[test]
fn what_is_kept_is_found_by_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path()).put(&KEY, 42, b"program").unwrap();
    let next = store(folder.path());
    assert_eq!(next.get(&KEY), Some((b"program".to_vec(), 42)));
    assert_eq!(next.get(&[8; 32]), None);
}

#[test]
fn refuses_and_removes_a_damaged_or_cut_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    store.put(&KEY, 42, b"program").unwrap();
    let (path, whole) = (only_file(&store), fs::read(only_file(&store)).unwrap());
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(store.get(&KEY), None, "byte {at}");
        assert!(!path.exists());
        fs::write(&path, &whole[..at]).unwrap();
        assert_eq!(store.get(&KEY), None, "cut at {at}");
    }
    fs::write(&path, &whole).unwrap();
    assert!(store.get(&KEY).is_some());
}

#[test]
fn a_program_under_anothers_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    store.put(&KEY, 42, b"program").unwrap();
    fs::rename(only_file(&store), store.path(&[9; 32])).unwrap();
    assert_eq!(store.get(&[9; 32]), None);
}

#[test]
fn links_and_pipes_are_not_followed_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    store.put(&KEY, 42, b"program").unwrap();
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(only_file(&store), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, store.path(&KEY)).unwrap();
    assert_eq!(store.get(&KEY), None);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        store.path(&[1; 32]),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    assert_eq!(store.get(&[1; 32]), None);
}

#[test]
fn a_folder_that_others_can_write_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let shared = folder.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let error = ProgramStore::open(&shared, 1000).unwrap_err().to_string();
    assert!(error.contains("alone"), "{error}");
}

#[test]
fn size_is_bounded_and_expensive_programs_stay_over_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let payload = [0; 200];
    store(folder.path()).put(&[1; 32], 1_000_000, &payload).unwrap();
    for key in 2..20u8 {
        let store = store(folder.path());
        store.put(&[key; 32], 10, &payload).unwrap();
        let sum: u64 =
            fs::read_dir(&store.folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        assert!(sum <= 1000, "{sum} bytes");
    }
    let store = store(folder.path());
    assert!(store.get(&[1; 32]).is_some(), "the dear one is gone");
    assert!(store.get(&[19; 32]).is_some(), "the newest is gone");
    assert!(store.get(&[2; 32]).is_none());
}

#[test]
fn a_reader_never_finds_half_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let large = vec![1; 700];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..50).for_each(|_| store.put(&KEY, 1, &large).unwrap()));
        while !writer.is_finished() {
            if let Some(bytes) = read(&store.path(&KEY)) {
                assert!(record::decode(bytes, &KEY).is_some(), "half a file");
            }
        }
    });
}
