"""Every question has its answer: a reveal's key was asked, and a typed result is one of the choices."""

import ast

import pytest
import stored


def calls(notebook, name):
    """The calls of a function by name, each as {argument: syntax tree}, the key under "key"."""
    found = [node for _, _, tree in stored.code(notebook) for node in ast.walk(tree)]
    found = [node for node in found if stored.called(node) == name]
    return [{"key": call.args[0], **{word.arg: word.value for word in call.keywords}} for call in found]


def problems(notebook):
    """Reveals that answer no question, or with a text that is no choice, so that nobody can be right."""
    asked = {ast.literal_eval(call["key"]): call.get("choices") for call in calls(notebook, "predict")}
    found = []
    for call in calls(notebook, "reveal"):
        key, result = ast.literal_eval(call["key"]), call["result"]
        if key not in asked:
            found.append(f"{key} is revealed and was never asked")
            continue
        choices = asked[key]
        if isinstance(result, ast.Constant) and isinstance(choices, ast.List):
            texts = [ast.literal_eval(choice) for choice in choices.elts]
            if result.value not in texts:
                found.append(f"{key}: {result.value!r} is none of the choices {texts}")
    revealed = [ast.literal_eval(call["key"]) for call in calls(notebook, "reveal")]
    return found + [f"{key} is asked and never revealed" for key in asked if key not in revealed]


@pytest.mark.parametrize("path", stored.NOTEBOOKS, ids=lambda path: path.stem)
def test_questions_and_answers_belong_together(path):
    assert problems(stored.read(path)) == []


QUESTION = "predict('02/x', 'Which?', choices=['this', 'that'])"


@pytest.mark.parametrize(
    "cells, words",
    [
        ((QUESTION,), "never revealed"),
        ((QUESTION, "reveal('02/y', result='this', teaches='t')"), "never asked"),
        ((QUESTION, "reveal('02/x', result='This', teaches='t')"), "none of the choices"),
    ],
)
def test_a_question_without_its_answer_is_found(cells, words):
    assert any(words in problem for problem in problems(stored.made(*((cell,) for cell in cells))))


def test_a_pair_passes():
    assert problems(stored.made((QUESTION,), ("reveal('02/x', result='this', teaches='t')",))) == []
