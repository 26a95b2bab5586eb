"""A language model of Hugging Face as extractor: a tiny one, built here, without any network."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import hcfl
from hcfl import Federation, InputError
from hcfl.models import text
from hcfl.models.text import TextExtractor, tokens

transformers = pytest.importorskip("transformers")

WORDS = ("[PAD]", "[UNK]", "good", "bad", "day", "night", "a", "very")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    path = tmp_path_factory.mktemp("tiny")
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    fast.save_pretrained(path)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=12, **sizes)
    transformers.BertModel(config).save_pretrained(path)
    return f"hf-model:{path}"


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
