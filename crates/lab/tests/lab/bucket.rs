//! A bucket of an S3-compatible store: a small one in this process.

use crate::{MIB, conform};
use larder::AlignedBuf;
use larder_lab::backend::s3::S3;
use larder_lab::backend::{Backend, Subject};
use larder_lab::error::Kind;
use std::collections::HashMap;
use std::sync::Mutex;

/// The least of an S3 store: whole objects in memory, one request a connection.
fn serve_objects(listener: std::net::TcpListener) {
    use std::io::{BufRead, BufReader, Read, Write};
    let objects: std::sync::Arc<Mutex<HashMap<String, Vec<u8>>>> = std::sync::Arc::default();
    for stream in listener.incoming() {
        let objects = objects.clone();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stream.unwrap());
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            let (path, query) = words[1].split_once('?').unwrap();
            let is_signed = query.contains("X-Amz-Signature") && path.starts_with("/bucket/deep/");
            let (mut header, mut len) = (String::new(), 0);
            while reader.read_line(&mut header).unwrap() > 2 {
                if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                    len = value.trim().parse().unwrap();
                }
                header.clear();
            }
            let mut body = vec![0; len];
            reader.read_exact(&mut body).unwrap();
            let mut objects = objects.lock().unwrap();
            let (status, answer) = match words[0] {
                _ if !is_signed => ("403 Forbidden", Vec::new()),
                "PUT" => {
                    objects.insert(path.to_owned(), body);
                    ("200 OK", Vec::new())
                }
                "DELETE" => {
                    objects.remove(path);
                    ("204 No Content", Vec::new())
                }
                _ => match objects.get(path) {
                    Some(content) => ("200 OK", content.clone()),
                    None => ("404 Not Found", Vec::new()),
                },
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                answer.len()
            );
            let mut stream = reader.into_inner();
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&answer).unwrap();
        });
    }
}

#[test]
fn a_bucket_conforms() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/bucket/deep", listener.local_addr().unwrap());
    std::thread::spawn(|| serve_objects(listener));
    let connect = || {
        let credentials = rusty_s3::Credentials::new("key", "secret");
        S3::with(&address, credentials, "us-east-1".to_owned()).unwrap()
    };
    let mut subject = Subject::of(Box::new(connect()), tempfile::tempdir().unwrap());
    conform(&mut subject, 32 * MIB);
    subject.end().unwrap();
    let gone = connect().get(0, &mut AlignedBuf::default()).unwrap_err();
    assert_eq!(gone.kind, Kind::Lost, "BACKEND-3: {gone}");
    for wrong in ["host/bucket", "http://host", "http://host/"] {
        let credentials = rusty_s3::Credentials::new("key", "secret");
        let error = S3::with(wrong, credentials, String::new()).err().unwrap();
        assert!(error.text.contains("s3:https://"), "{error}");
    }
}
