#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;

use super::*;
use crate::directory::DirectoryStore;

const IDENTITY: Identity = Identity { system_id: 7, segment_size: 1 << 20 };
const SEGMENT: &str = "000000010000000000000001";

/// A service that ignores or refuses the condition of a creation.
#[derive(Default)]
struct Old {
    objects: Mutex<BTreeMap<String, Bytes>>,
    refuses: bool,
}

impl std::fmt::Debug for Old {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Old").field("refuses", &self.refuses).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for Old {
    fn name(&self) -> &str {
        "old"
    }

    async fn create(&self, path: &str, object: Bytes) -> Result<Created, StoreError> {
        if self.refuses {
            return Ok(Created::Unsupported);
        }
        self.overwrite(path, object).await.map(|()| Created::New)
    }

    async fn overwrite(&self, path: &str, object: Bytes) -> Result<(), StoreError> {
        self.objects.lock().unwrap().insert(path.into(), object);
        Ok(())
    }

    async fn read(&self, path: &str, bytes: Option<usize>) -> Result<Option<Bytes>, StoreError> {
        let object = self.objects.lock().unwrap().get(path).cloned();
        Ok(object.map(|object| object.slice(..bytes.unwrap_or(usize::MAX).min(object.len()))))
    }

    async fn list(&self, directory: &str) -> Result<Vec<Listed>, StoreError> {
        let objects = self.objects.lock().unwrap();
        let below = objects.iter().filter(|(path, _)| path.starts_with(&format!("{directory}/")));
        Ok(below.map(|(path, object)| Listed { path: path.clone(), size: object.len() as u64 }).collect())
    }

    async fn directories(&self, _: &str) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    async fn remove(&self, path: &str) -> Result<(), StoreError> {
        self.objects.lock().unwrap().remove(path);
        Ok(())
    }
}

fn dynamic<S: Store + 'static>(store: Arc<S>) -> Arc<dyn Store> {
    store
}

fn span(file: &str, from: u64, to: u64) -> Span {
    Span { file: FileName::parse(file).unwrap(), from, to }
}

fn bytes(span: &Span, seed: u8) -> Vec<u8> {
    (span.from..span.to).map(|at| (at / 512) as u8 ^ seed).collect()
}

async fn put(archive: &Archive, kind: Kind, span: &Span, raw: &[u8]) -> Result<Put, ArchiveError> {
    let sealed = archive.seal(kind, span, raw, raw.len() as u64).unwrap();
    archive.put(&archive.path(kind, span), kind, span, sealed).await
}

async fn fetch(archive: &Archive, file: &str) -> Option<Vec<u8>> {
    let mut fetched = Vec::new();
    let write = |piece: &[u8], at: u64| -> Result<(), ArchiveError> {
        let at = at as usize;
        fetched.resize(fetched.len().max(at + piece.len()), 0);
        fetched[at..at + piece.len()].copy_from_slice(piece);
        Ok(())
    };
    let found = archive.fetch(&FileName::parse(file).unwrap(), write).await.unwrap();
    found.then_some(fetched)
}

#[tokio::test]
async fn nothing_is_overwritten_on_any_store() {
    let temporary = tempfile::tempdir().unwrap();
    let stores: [Arc<dyn Store>; 3] = [
        Arc::new(DirectoryStore::new(temporary.path(), std::time::Duration::from_secs(60))),
        Arc::new(Old::default()),
        Arc::new(Old { refuses: true, ..Old::default() }),
    ];
    for (store, creates) in stores.into_iter().zip([true, false, false]) {
        let archive = Archive::open(store.clone(), IDENTITY, false).await.unwrap();
        assert_eq!(archive.creates(), creates, "{store:?}");
        let whole = span(SEGMENT, 0, 1 << 20);
        assert_eq!(fetch(&archive, SEGMENT).await, None);
        assert_eq!(put(&archive, Kind::Block, &whole, &bytes(&whole, 0)).await.unwrap(), Put::New);
        // Another relay of the cluster.
        let other = Archive::open(store.clone(), IDENTITY, false).await.unwrap();
        assert_eq!(put(&other, Kind::Block, &whole, &bytes(&whole, 0)).await.unwrap(), Put::Equal);
        let error = put(&other, Kind::Block, &whole, &bytes(&whole, 1)).await.unwrap_err();
        assert!(matches!(error, ArchiveError::Differs { .. }) && error.is_final(), "{error}");
        assert_eq!(fetch(&other, SEGMENT).await.unwrap(), bytes(&whole, 0));

        let stranger = Identity { system_id: 8, ..IDENTITY };
        let error = Archive::open(store.clone(), stranger, false).await.unwrap_err();
        assert!(error.to_string().contains("system identifier 7"), "{error}");
        let error =
            Archive::open(store.clone(), Identity { segment_size: 16 << 20, ..IDENTITY }, false).await.unwrap_err();
        assert!(error.to_string().contains("segments of 1048576 bytes"), "{error}");

        let history = span("00000002.history", 0, 30);
        put(&archive, Kind::History, &history, b"1\t0/2000000\tno recovery target").await.unwrap();
        assert_eq!(fetch(&archive, "00000002.history").await.unwrap(), b"1\t0/2000000\tno recovery target");
        assert_eq!(fetch(&archive, "00000003.history").await, None);
    }
}

#[tokio::test]
async fn parts_are_joined_up_to_the_first_gap() {
    let temporary = tempfile::tempdir().unwrap();
    let store = || Arc::new(DirectoryStore::new(temporary.path(), std::time::Duration::from_secs(60)));
    let archive = Archive::open(dynamic(store()), IDENTITY, false).await.unwrap();
    for (from, to) in [(0, 1000), (1000, 3000), (500, 2000), (4000, 5000)] {
        let part = span(SEGMENT, from, to);
        put(&archive, Kind::Part, &part, &bytes(&part, 0)).await.unwrap();
    }
    let archive = Archive::attach(dynamic(store())).await.unwrap();
    assert_eq!(fetch(&archive, SEGMENT).await.unwrap(), bytes(&span(SEGMENT, 0, 3000), 0));
    assert_eq!(fetch(&archive, "000000010000000000000002").await, None);
}

#[tokio::test]
async fn damage_is_an_error_and_no_short_file() {
    let temporary = tempfile::tempdir().unwrap();
    let store = Arc::new(DirectoryStore::new(temporary.path(), std::time::Duration::from_secs(60)));
    let archive = Archive::open(dynamic(store.clone()), IDENTITY, false).await.unwrap();
    let whole = span(SEGMENT, 0, 1 << 20);
    put(&archive, Kind::Block, &whole, &bytes(&whole, 0)).await.unwrap();
    let path = temporary.path().join(archive.path(Kind::Block, &whole));
    let good = std::fs::read(&path).unwrap();
    let (cut, mut changed) = (&good[..good.len() - 1], good.clone());
    *changed.last_mut().unwrap() ^= 1;
    for bad in [cut, &changed, &good[..100], b""] {
        std::fs::write(&path, bad).unwrap();
        let error = archive.get(Kind::Block, &whole).await.unwrap_err();
        assert!(matches!(error, ArchiveError::Object { .. }), "{error}");
    }
    // An object under another's name.
    std::fs::create_dir_all(temporary.path().join("wal/0000000100000000")).unwrap();
    std::fs::write(temporary.path().join("wal/0000000100000000/000000010000000000000002"), &good).unwrap();
    let error = archive.get(Kind::Block, &span("000000010000000000000002", 0, 1 << 20)).await.unwrap_err();
    assert!(error.to_string().contains("something else"), "{error}");
}

#[tokio::test]
async fn a_directory_that_is_gone_is_not_made_again() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("archive");
    let store = || Arc::new(DirectoryStore::new(&root, std::time::Duration::from_secs(60)));
    let error = Archive::open(dynamic(store()), IDENTITY, false).await.unwrap_err();
    assert!(!error.is_final() && !root.exists(), "{error}");
    std::fs::create_dir(&root).unwrap();
    assert!(matches!(Archive::attach(dynamic(store())).await, Err(ArchiveError::NoArchive { .. })));
    let one = store();
    Archive::open(dynamic(one.clone()), IDENTITY, false).await.unwrap();
    let leftovers = std::fs::read_dir(&root).unwrap().flatten().map(|entry| entry.file_name()).collect::<Vec<_>>();
    assert_eq!(leftovers.len(), 2, "{leftovers:?}");
    // As after an unmount.
    std::fs::rename(&root, temporary.path().join("away")).unwrap();
    std::fs::create_dir(&root).unwrap();
    let error = Archive::open(dynamic(one), IDENTITY, true).await.unwrap_err();
    assert!(error.to_string().contains("another one than before"), "{error}");
    let error = Archive::open(dynamic(store()), IDENTITY, true).await.unwrap_err();
    assert!(matches!(error, ArchiveError::NoArchive { .. }), "{error}");
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
}

#[tokio::test]
async fn a_turn_is_of_one_backup_on_any_store() {
    let temporary = tempfile::tempdir().unwrap();
    let stores: [Arc<dyn Store>; 3] = [
        Arc::new(DirectoryStore::new(temporary.path(), std::time::Duration::from_secs(60))),
        Arc::new(Old::default()),
        Arc::new(Old { refuses: true, ..Old::default() }),
    ];
    let (one, other) = (BackupId::new(0, 1), BackupId::new(0, 2));
    for store in stores {
        let archive = Archive::open(store, IDENTITY, false).await.unwrap();
        assert_eq!(archive.turn(7).await.unwrap(), None);
        assert!(archive.take_turn(7, &one).await.unwrap());
        assert!(!archive.take_turn(7, &other).await.unwrap());
        // An attempt whose answer was lost.
        assert!(archive.take_turn(7, &one).await.unwrap());
        assert_eq!(archive.turn(7).await.unwrap(), Some(one.clone()));
    }
}
