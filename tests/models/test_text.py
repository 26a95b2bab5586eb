"""A language model of Hugging Face as extractor: a tiny one, built here, without any network."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

import hcfl
from hcfl import Federation, InputError
from hcfl.cli import main
from hcfl.data.tables.fit import join
from hcfl.models import text
from hcfl.models.text import TextExtractor, tokens
from helpers import tiny_language_model

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_language_model(tmp_path_factory.mktemp("tiny"))


def test_texts_become_numbers(folder):
    assert tokens(["a good day", "terrible"], folder, 4).tolist() == [[6, 2, 4, -1], [1, -1, -1, -1]]
    assert tokens(["a very very good day"], folder, 3).tolist() == [[6, 7, 7]]


def test_the_mean_is_over_a_text_s_own_tokens(folder):
    extractor, _ = text.builder(folder)((4,), 2)
    assert isinstance(extractor, TextExtractor)
    extractor.eval()
    found = extractor(torch.tensor([[6.0, 2, -1, -1]]))
    assert_close(found, extractor.model(input_ids=torch.tensor([[6, 2]])).last_hidden_state.mean(dim=1))
    assert_close(found, extractor(torch.tensor([[6.0, 2]])))


@pytest.mark.parametrize("train", ["heads", "adapters"])
def test_clients_with_texts(folder, tmp_path, train):
    said = ["a good day", "a bad night", "very good", "very bad"] * 12
    y = np.array(["bad" in one for one in said]).astype(int)
    x = tokens(said, folder, 5)
    client = np.arange(len(y)) // 4 % 3
    data = Federation.from_arrays(x, y, client=client, scale="none")
    settings = {"train": train, "rounds": 2, "epochs": 1, "batch": 8, "lora_rank": 2, "serve": "last"}
    run = hcfl.run("ifca", data, folder, tmp_path / "run", clusters=2, **settings)
    sent = run.rows[-1]["bytes_up_by_part"]
    assert sent["extractor"] == (0 if train == "heads" else 4 * 3 * 2 * 7 * 16)  # seven linear layers of 8 by 8
    again = hcfl.load(run.path, serve="last")
    np.testing.assert_allclose(again.predict_proba(x, cluster=0), run.predict_proba(x, cluster=0), atol=1e-6)


@pytest.fixture(scope="module")
def reviews():
    said = ["a good day", "a bad night", "very good", "very bad"] * 15
    table = pd.DataFrame({"review": said, "shop": np.array(list("abc"))[np.arange(60) // 4 % 3]})
    table["mood"] = ["down" if "bad" in one else "up" for one in said]
    return table


def test_a_column_of_texts_is_read_by_the_model_s_tokenizer_everywhere(folder, reviews, tmp_path, capsys):
    reviews.to_csv(tmp_path / "reviews.csv", index=False)
    given = f"--data {tmp_path / 'reviews.csv'} --label mood --client shop --text review --text-length 3"
    trained = "--train adapters --lora-rank 2 --rounds 2 --epochs 1 --batch 8 --serve last"
    assert main(f"run ifca {given} --model {folder} {trained} --clusters 2 --out {tmp_path / 'run'}".split()) == 0
    run = hcfl.load(tmp_path / "run", serve="last")
    schema = run.federation.schema
    assert schema.text.tokens.tokenizer == folder
    assert schema.encode(reviews).x.tolist() == tokens(reviews.review, folder, 3).tolist()
    assert hcfl.Schema.load(tmp_path / "run" / "schema.json") == schema
    new = pd.DataFrame({"review": ["a very very bad day", None]})
    with pytest.warns(UserWarning, match="1 missing values are read as empty texts"):
        found = run.predict_proba(new, cluster=0)
    np.testing.assert_allclose(found, run.predict_proba(tokens(["a very very", ""], folder, 3), cluster=0), atol=1e-6)
    model = hcfl.load_model(run.export(tmp_path / "m.safetensors", cluster=0))
    shown = model(torch.from_numpy(model.schema.encode(new).x)).detach().numpy()
    np.testing.assert_allclose(shown, found, atol=1e-5)
    capsys.readouterr()
    assert main(f"assign {tmp_path / 'run'} --data {tmp_path / 'reviews.csv'} --serve last".split()) == 0
    assert "cluster" in capsys.readouterr().out


def test_schemas_of_texts(folder, reviews, tmp_path, capsys):
    for shop, part in reviews.groupby("shop"):
        part.drop(columns="shop").to_csv(tmp_path / f"{shop}.csv", index=False)
        told = f"data schema {tmp_path / shop}.csv --label mood --text review --text-length 2 --tokenizer {folder}"
        assert main([*told.split(), "--out", str(tmp_path / f"{shop}.json")]) == 0
    assert "50% of the texts are longer than 2 tokens, and are cut" in " ".join(capsys.readouterr().out.split())
    parts = [hcfl.Schema.load(tmp_path / f"{shop}.json") for shop in "abc"]
    joined = join(parts)
    assert (joined.columns, joined.rows) == (parts[0].columns, 60)
    other = replace(parts[1].columns[0], tokens=replace(parts[1].columns[0].tokens, length=3))
    with pytest.raises(InputError, match="the schemas have different tokenizers, or another text_length"):
        join([parts[0], replace(parts[1], columns=(other,))])
    strange = replace(other, tokens=replace(other.tokens, vocabulary="0" * 64))
    with pytest.raises(InputError, match="has other tokens here than where the schema was fitted"):
        strange.encode(reviews.review)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, r"^data\.text = 'review': texts are read by a language model; add --model hf-model:OWNER/NAME"),
        ({"tokenizer": "mlp"}, "texts are read by a language model, not by 'mlp'"),
        ({"text": "reviw"}, "has no column 'reviw', which data.text names; did you mean review"),
        ({"text": "mood"}, "data.text = 'mood': has another role, or is no input"),
        ({"text": None, "text_length": 4}, "data.text_length = 4: is of texts, which need data.text"),
        ({"history": 2, "time": "age"}, "a forecast \\(data.history\\) is made from numbers, not from texts"),
        ({"drop": ""}, "texts are the only input, but there is also age; add --features review"),
    ],
)
def test_what_texts_cannot_have_is_refused(reviews, settings, words):
    given = {"text": "review", "drop": "age", **settings}
    with pytest.raises(InputError, match=words):
        Federation.from_frame(reviews.assign(age=30), label="mood", client="shop", **given)


def test_a_language_model_and_its_texts_belong_together(folder, reviews, tmp_path):
    texts = Federation.from_frame(reviews, label="mood", client="shop", text="review", tokenizer=folder, text_length=3)
    with pytest.raises(InputError, match=r"^model\.name = 'mlp': the texts were read by the tokenizer of hf-model:"):
        hcfl.run("fedavg", texts, "mlp", tmp_path / "run")
    plain = Federation.from_frame(reviews, label="mood", client="shop")
    with pytest.raises(InputError, match=r"reads texts; name the table's column of texts with data.text"):
        hcfl.run("fedavg", plain, folder, tmp_path / "run")
    many = pd.concat([reviews] * 4).assign(review=[f"day {number}" for number in range(240)])
    with pytest.raises(InputError, match=r"or let a language model read it with --text review$"):
        Federation.from_frame(many, label="mood", client="shop")


def test_what_cannot_be_loaded_is_one_sentence(folder, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"^model\.name = 'hf-model:.*nothing': cannot be loaded \(.*\)$"):
        text.builder(f"hf-model:{tmp_path / 'nothing'}")((4,), 2)
    with pytest.raises(InputError, match="reads 12 tokens at most, but inputs have 13"):
        text.builder(folder)((13,), 2)
    with pytest.raises(InputError, match="reads token numbers"):
        text.builder(folder)((4, 4), 2)
    monkeypatch.setattr(text, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs the package transformers: pip install 'hcfl\[text\]'"):
        text.builder("hf-model:other")((4,), 2)
