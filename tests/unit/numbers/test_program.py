"""The source of test-backend-ops gets more cases."""

from __future__ import annotations

from pathlib import Path

from builder.numbers import program

LIST = "static std::vector<std::unique_ptr<test_case>> make_test_cases_eval()"


def test_our_cases_are_added_to_the_trees() -> None:
    source = f"struct test_case;\n{LIST} {{\n}}\nuse(make_test_cases_eval());\n"
    made = program.with_more_cases(source)
    declared, included, defined = made.splitlines()[1:4]
    assert declared == "static std::vector<std::unique_ptr<test_case>> tree_cases();"
    assert included == '#include "cases.cpp"'
    assert defined == "static std::vector<std::unique_ptr<test_case>> tree_cases() {"
    assert made.count("use(make_test_cases_eval())") == 1


def test_a_tree_with_another_list_stays_as_it_is() -> None:
    assert program.with_more_cases("int main() {}\n") == "int main() {}\n"


def test_the_tests_of_the_tree_itself_win_over_those_of_a_part(tmp_path: Path) -> None:
    assert program.in_tree(tmp_path) is None
    for folder in ("vendor/llama.cpp/tests", "tests"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "test-backend-ops.cpp").touch()
        assert program.in_tree(tmp_path) == tmp_path / folder
