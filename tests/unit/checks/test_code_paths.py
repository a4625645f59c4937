"""Every card of a recipe has a path through every library, in all layers; else it is accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.checks import cuda
from builder.checks.cuda import check_code_paths, code_path_table
from builder.checks.verdict import Check
from builder.image.contents import Contents, File
from builder.recipes.probes import Accept
from builder.recipes.schema import Recipe
from simulator.elf import ElfFile
from simulator.fatbin import Modules
from simulator.ledger import Body, FatBinary, Kernel
from simulator.selection import Code
from support.smoke_tests import context_of, extended_image, of_arch

FA2 = "/opt/engine/lib/vllm/_vllm_fa2_C.abi3.so"
FA3 = "/opt/engine/lib/vllm/_vllm_fa3_C.abi3.so"
CUBLAS = "/usr/local/cuda/lib/libcublas.so.13"


def file_with(path: str, *modules: tuple[Code, ...], shares: str = "") -> File:
    found = tuple(Modules(codes, (1_000_000,) * len(codes), 1) for codes in modules)
    parsed = ElfFile("x86-64", "dyn", path, (), (), (), None, found)
    return File(path, "file", elf=parsed, shares=shares)


def image(*files: File) -> Contents:
    return Contents({file.path: file for file in files}, {}, (), 0)


SM_80, SM_90A, SM_120 = Code("elf", 80), Code("elf", 90, "a"), Code("elf", 120)
PTX_80 = Code("ptx", 80)
WHEEL = image(
    file_with(FA2, (PTX_80, SM_80)),
    file_with(FA3, (SM_90A,)),
    file_with(CUBLAS, (SM_80, SM_120)),
    file_with("/usr/lib/libc.so.6"),
)


def found(contents: Contents, recipe: Recipe, **more: object) -> list[Check]:
    every = check_code_paths(context_of(contents, recipe, **more))
    return [each for each in every if each.state != "skipped"]  # bodies that were not read


def accepting(*paths: str) -> Recipe:
    rules = [Accept(check="code paths", path=path, why=f"because of {path}") for path in paths]
    return of_arch("120").model_copy(update={"accept": rules})


def test_a_library_without_code_fails_and_so_does_one_that_the_driver_compiles() -> None:
    dead, late = found(WHEEL, of_arch("120"))
    assert (dead.state, late.state) == ("failed", "failed")
    assert dead.subject == "every library has code for 12.0"
    assert dead.found == f"{FA3}: none of 1.0 MB runs"
    assert late.found == f"{FA2}: 1.0 MB of PTX"


def test_the_layers_of_a_published_image_count_too() -> None:
    base = extended_image(0, {})  # nothing is added to it
    dead, late = found(WHEEL, of_arch("120"), extended=base)
    assert (dead.passed, late.passed) == (False, False)


def test_a_recipe_accepts_each_library_with_a_reason() -> None:
    dead, late = found(WHEEL, accepting(FA3))
    assert (dead.passed, late.passed) == (True, False)
    assert dead.found.endswith(f"; accepted: 1 (because of {FA3})")
    assert all(each.passed for each in found(WHEEL, accepting("/*/_vllm_fa?_C.abi3.so")))


def test_an_acceptance_that_no_library_needs_fails() -> None:
    context = context_of(image(file_with(CUBLAS, (SM_120,))), accepting(FA3))
    assert not any(each.state == "failed" for each in check_code_paths(context))
    (unused,) = context.rules.unused()
    assert unused.subject == f"code paths {FA3}"


@pytest.mark.parametrize(
    ("arch", "cublas", "good"),
    [
        ("120a", Code("elf", 120), True),
        ("121", Code("elf", 120), True),
        ("121", Code("elf", 120, "f"), True),
        ("121", Code("elf", 120, "a"), False),
        ("121", Code("ptx", 120), False),
        ("121", Code("elf", 100), False),
        ("120", Code("elf", 121), False),
    ],
)
def test_any_machine_code_is_enough_that_the_card_runs(arch: str, cublas: Code, good: bool) -> None:
    checks = found(image(file_with(CUBLAS, (cublas,))), of_arch(arch))
    assert all(each.passed for each in checks) is good


def test_one_module_is_enough_for_the_driver_to_compile() -> None:
    contents = image(file_with(CUBLAS, (SM_120,), (PTX_80, SM_80)))
    dead, late = found(contents, of_arch("120"))
    assert (dead.passed, late.passed) == (True, False)


def test_every_card_of_the_recipe_is_checked() -> None:
    contents = image(file_with(CUBLAS, (Code("elf", 120, "a"),)))
    failed = [each.subject for each in found(contents, of_arch("120", "121")) if not each.passed]
    assert failed == ["every library has code for 12.1"]
    rows = code_path_table(contents, of_arch("120", "121"))
    assert [(each.card, each.native, each.dead) for each in rows] == [
        ("12.0", 1_000_000, 0),
        ("12.1", 0, 1_000_000),
    ]


def test_a_library_with_two_names_counts_once() -> None:
    twice = file_with("/usr/lib/other.so", (SM_90A,), shares=CUBLAS)
    dead, _ = found(image(file_with(CUBLAS, (SM_90A,)), twice), of_arch("120"))
    assert dead.found == f"{CUBLAS}: none of 1.0 MB runs"


def test_an_image_without_device_code_passes() -> None:
    assert {each.found for each in found(image(), of_arch("120"))} == {"no library has device code"}


def test_zeros_count_as_removed_in_wheels_alone() -> None:
    """NVIDIA's cuBLAS for arm64 has 0.4 MB of zeros of its own."""
    in_wheel = "/opt/engine/lib/python3.13/site-packages/vllm/_C.abi3.so"
    files = [file_with(path, (SM_120,)) for path in (in_wheel, CUBLAS)]
    slim = [replace(each, elf=replace(each.elf, zeros=400_000)) for each in files if each.elf]
    code = {each.path: each.removed for each in code_path_table(image(*slim), of_arch("120"))}
    assert code == {in_wheel: 400_000, CUBLAS: 0}


def test_an_accepted_path_does_not_cover_a_file_whose_description_names_it() -> None:
    rules = context_of(WHEEL, accepting("/*/_vllm_fa3_C.abi3.so")).rules
    offender = (CUBLAS, f"{CUBLAS}: needs {FA3}")
    assert not rules.check("code paths", "all", "none", [offender]).passed


def bodies(path: str, *found: tuple[Body, ...], names: tuple[str, ...] = ()) -> File:
    kernels = tuple(Kernel(name, 0, 0, 0, None, None, 0, 0, 0, "") for name in names)
    code = tuple(FatBinary(0, each[0].code.name, kernels, bodies=each) for each in found)
    parsed = tuple(
        Modules(tuple(b.code for b in each), (1_000_000,) * len(each), 1) for each in found
    )
    elf = ElfFile("x86-64", "dyn", path, (), (), (), None, parsed)
    return File(path, "file", elf=elf, fat_binaries=code)


SM_120A, SM_121A = Code("elf", 120, "a"), Code("elf", 121, "a")
MARLIN = "_ZN16marlin_moe_wna166MarlinILl1EEEvPf"


def test_kernels_that_the_driver_compiles_are_counted_and_named() -> None:
    """The wheel vllm 0.20.2 has 738 kernels of Marlin for experts as PTX alone."""
    late = (Body(PTX_80, 3, 0, 0, version="9.0", target="sm_80"),)
    file = bodies(FA2, late, names=(MARLIN, MARLIN.replace("Ll1", "Ll2"), "other"))
    (_, found_late, _) = found(image(file), of_arch("120"))
    assert found_late.found == (
        f"{FA2}: 1.0 MB of PTX, 3 kernels: marlin_moe_wna16::Marlin (2), other (1)"
    )


@pytest.mark.parametrize(
    ("of_120", "of_121", "failed"),
    [
        (Body(SM_120A, 2, 0, 0), Body(SM_121A, 2, 0, 0), []),
        (Body(SM_120A, 2, 0, 0), Body(SM_121A, 2, 1, 1, hollow=("a", "b")), ["12.1"]),
        (Body(SM_120A, 2, 0, 1, hollow=("a",)), Body(SM_121A, 2, 0, 0), ["12.0"]),
        # As in real wheels: CUB's EmptyKernel, and CUTLASS's kernels for other cards.
        (Body(SM_120A, 9, 0, 1), Body(SM_121A, 9, 0, 1), []),
        (Body(SM_120A, 90, 72, 1), Body(SM_121A, 90, 72, 1), []),
        (Body(SM_120A, 1, 0, 1), Body(SM_121A, 1, 0, 1), []),
        # Nothing computes, for any card.
        (Body(SM_120A, 2, 2, 0), Body(SM_121A, 2, 2, 0), ["12.0", "12.1"]),
    ],
)
def test_code_that_only_traps_in_the_place_of_a_kernel_is_found(
    of_120: Body, of_121: Body, failed: list[str]
) -> None:
    recipe = of_arch("120a", "121a")
    contents = image(bodies("/opt/engine/lib/libx.so", (of_120, of_121)))
    wrong = {each.subject for each in found(contents, recipe) if not each.passed}
    assert wrong == {f"the kernels for {card} compute" for card in failed}
    (engine,) = cuda.check_architectures(context_of(contents, recipe))
    assert engine.passed is not bool(failed)
    assert all(f"on {card}: " in engine.found for card in failed)


def test_kernels_that_were_not_read_are_not_known() -> None:
    read = bodies("/opt/engine/lib/libx.so", (Body(SM_120A, 2, 0, 0),))
    *_, some = check_code_paths(
        context_of(image(read, file_with(CUBLAS, (SM_120,))), of_arch("120"))
    )
    assert some.found == "2 kernels, 0 only trap or print; libraries not read: 1"
    *_, none = check_code_paths(context_of(image(file_with(CUBLAS, (SM_120,))), of_arch("120")))
    assert (none.state, none.found) == ("skipped", "the kernels of no library were read")
