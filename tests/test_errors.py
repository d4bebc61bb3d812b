import socket

import pytest

from vitscope.errors import UnknownName, unknown


def test_near_matches_come_first_and_ignore_case():
    message = str(unknown("backbone", "TWIN-S", ["dino_softmax", "twin_s", "twin_b"]))
    assert message.startswith("Unknown backbone 'TWIN-S'. Did you mean 'twin_s' or 'twin_b'?")
    assert "Available: dino_softmax, twin_s, twin_b." in message


def test_three_matches_read_as_a_sentence():
    assert "Did you mean 'aaa3', 'aaa2' or 'aaa1'?" in str(unknown("name", "aaa", ["aaa1", "aaa2", "aaa3"]))


def test_no_near_match_gives_no_suggestion():
    message = str(unknown("dataset", "zzz", ["emoji_group"]))
    assert message == "Unknown dataset 'zzz'. Available: emoji_group."


def test_long_lists_are_cut():
    message = str(unknown("backbone", "qqq", [f"name{i}" for i in range(30)]))
    assert "name11 and 18 more" in message
    assert "name12" not in message


def test_it_is_a_value_error_and_names_of_any_type_are_shown():
    error = unknown("state", 13, ["0", "1"])
    assert isinstance(error, UnknownName)
    assert isinstance(error, ValueError)
    assert "Unknown state 13." in str(error)


def test_the_test_session_refuses_other_machines():
    with socket.socket() as s, pytest.raises(RuntimeError, match="tests run without network"):
        s.connect(("192.0.2.1", 80))
    with pytest.raises(RuntimeError, match=r"looked up 'example\.org'"):
        socket.getaddrinfo("example.org", 443)


def test_the_test_session_allows_this_machine():
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
