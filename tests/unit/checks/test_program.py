"""The source of test-backend-ops gets more cases."""

from __future__ import annotations

import subprocess
from pathlib import Path

from builder.checks import kernel_test
from builder.core.farm import installed

LIST = "static std::vector<std::unique_ptr<test_case>> make_test_cases_eval()"


def test_our_cases_are_added_to_the_trees() -> None:
    source = f"struct test_case;\n{LIST} {{\n}}\nuse(make_test_cases_eval());\n"
    made = kernel_test.with_more_cases(source)
    declared, included, defined = made.splitlines()[1:4]
    assert declared == "static std::vector<std::unique_ptr<test_case>> tree_cases();"
    assert included == '#include "cases.cpp"'
    assert defined == "static std::vector<std::unique_ptr<test_case>> tree_cases() {"
    assert made.count("use(make_test_cases_eval())") == 1


def test_a_tree_with_another_list_stays_as_it_is() -> None:
    assert kernel_test.with_more_cases("int main() {}\n") == "int main() {}\n"


def test_random_numbers_can_be_repeated(tmp_path: Path) -> None:
    source = """#include <cstdio>
int main() {
    std::random_device rd;
    std::default_random_engine gen(std::random_device{}());
    printf("%u %u %u\\n", rd(), (unsigned) gen(), std::thread::hardware_concurrency());
}
"""
    (tmp_path / "numbers.cpp").write_text(kernel_test.repeatable(source))
    built, folder = tmp_path / "numbers", installed() / kernel_test.SOURCES
    command = ["g++", "-std=c++20", f"-I{folder}", f"{tmp_path}/numbers.cpp", "-o", str(built)]
    subprocess.run(command, check=True)

    def ran(**environment: str) -> str:
        return subprocess.run([built], env=environment, capture_output=True, text=True).stdout

    assert ran(BUILDER_REPEATABLE="1") == ran(BUILDER_REPEATABLE="1") != ""
    assert ran(BUILDER_REPEATABLE="1").split()[2] == "1"
    assert ran() != ran()


def test_the_tests_of_the_tree_itself_win_over_those_of_a_part(tmp_path: Path) -> None:
    assert kernel_test.in_tree(tmp_path) is None
    for folder in ("vendor/llama.cpp/tests", "tests"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "test-backend-ops.cpp").touch()
        assert kernel_test.in_tree(tmp_path) == tmp_path / folder
