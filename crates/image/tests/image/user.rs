//! Users by the image's own lists.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ambit_image::Limits;
use ambit_image::users::resolve;

use crate::build::whole;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbroken\nweb:x:101:102::/srv/web:/bin/false\n\
                      1000:x:5:6::/odd:\nnohome:x:7:8\n";
const GROUP: &str = "root:x:0:\nweb:x:102:\nlogs:x:300:web,other\nmail:x:200:other,web\n\
                     again:x:200:web\nbad:x:y:web\n";

fn check(root: &Path, user: &str, expected: Result<(u32, u32, &[u32], &str), &str>) {
    match (resolve(root, user, &Limits::default()), expected) {
        (Ok(user), Ok((uid, gid, groups, home))) => {
            assert_eq!((user.uid, user.gid, &user.groups[..]), (uid, gid, groups));
            assert_eq!(user.home, Path::new(home));
        }
        (Err(error), Err(part)) => {
            let text = whole(&error);
            assert!(text.contains(part), "{text}");
        }
        (found, expected) => panic!("{user}: {found:?}, not {expected:?}"),
    }
}

fn image() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    fs::write(root.path().join("etc/passwd"), PASSWD).unwrap();
    fs::write(root.path().join("etc/group"), GROUP).unwrap();
    root
}

#[test]
fn users_and_groups_are_names_or_numbers() {
    let image = image();
    let check = |user: &str, expected| check(image.path(), user, expected);
    check("", Ok((0, 0, &[], "/root")));
    check("root", Ok((0, 0, &[], "/root")));
    check("web", Ok((101, 102, &[200, 300], "/srv/web")));
    check("101", Ok((101, 102, &[200, 300], "/srv/web")));
    check("web:", Ok((101, 102, &[200, 300], "/srv/web")));
    check("web:logs", Ok((101, 300, &[], "/srv/web")));
    check("web:77", Ok((101, 77, &[], "/srv/web")));
    check("4321", Ok((4321, 0, &[], "/")));
    check("4321:300", Ok((4321, 300, &[], "/")));
    check(":logs", Ok((0, 300, &[], "/root")));
    check("1000", Ok((5, 6, &[], "/odd")));
    check("nohome", Ok((7, 8, &[], "/")));
    check("nobody", Err("no user \"nobody\""));
    check("web:nobody", Err("no group \"nobody\""));
    check("-1", Err("no user"));
    check("4294967295", Err("no user"));
    check("0:4294967295", Err("no group"));
}

#[test]
fn an_image_without_lists_has_numbers_only() {
    let root = tempfile::tempdir().unwrap();
    check(root.path(), "65532:65532", Ok((65532, 65532, &[], "/")));
    check(root.path(), "", Ok((0, 0, &[], "/")));
    check(root.path(), "web", Err("no user \"web\""));
}

#[test]
fn lists_are_read_inside_the_image_only() {
    let image = image();
    let (passwd, real) = (image.path().join("etc/passwd"), image.path().join("real"));
    fs::rename(&passwd, &real).unwrap();
    symlink("/real", &passwd).unwrap();
    check(image.path(), "web:0", Ok((101, 0, &[], "/srv/web")));
    fs::remove_file(&passwd).unwrap();
    symlink("../../../../../../real", &passwd).unwrap();
    check(image.path(), "web:0", Ok((101, 0, &[], "/srv/web")));
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("passwd"), "stranger:x:9:9:::\n").unwrap();
    fs::remove_file(&passwd).unwrap();
    symlink(outside.path().join("passwd"), &passwd).unwrap();
    check(image.path(), "stranger", Err("no user"));
    fs::remove_file(&passwd).unwrap();
    symlink("passwd", &passwd).unwrap();
    check(image.path(), "web", Err("more than 40 symbolic links"));
    fs::remove_file(&passwd).unwrap();
    fs::create_dir(&passwd).unwrap();
    check(image.path(), "web", Err("cannot find the image's /etc/passwd"));
    fs::remove_dir(&passwd).unwrap();
    fs::write(&passwd, vec![b'\n'; (1 << 20) + 1]).unwrap();
    check(image.path(), "web", Err("more than 1048576 bytes"));
}
